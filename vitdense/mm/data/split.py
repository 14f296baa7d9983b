"""One annotation file in two: images to train and images to validate."""

import random
from collections import Counter
from collections.abc import Mapping

from vitdense.mm.data.coco import RENAMED
from vitdense.mm.errors import ConfigError, join_some

SEED = 0


def split_images(content: Mapping[str, list[dict]], share: float) -> tuple[dict, dict]:
    """The content of an annotation file, of instances or of segments, for training and for validation.

    Images are drawn by a fixed seed, whatever their order in the file. Validation gets `share` of the images of each
    class, the rarest first, and of the images without annotation; of a class in two images or more at least one.
    Training keeps an image of each class. A file of which no image can validate is a ConfigError.
    """
    classes = {image["id"]: set() for image in sorted(content["images"], key=lambda image: image["file_name"])}
    for one in content["annotations"]:
        segments = one.get("segments_info", [one])
        classes.get(one["image_id"], set()).update(segment["category_id"] for segment in segments)
    images = random.Random(SEED).sample([*classes], len(classes))
    total = Counter(kind for kinds in classes.values() for kind in kinds)
    kept, drawn, chosen = total.copy(), Counter(), set()
    for kind in sorted(total, key=lambda kind: (total[kind], kind)):
        wanted = max(round(share * total[kind]), 1)
        for image in images:
            is_spare = image not in chosen and all(kept[one] > 1 for one in classes[image])
            if drawn[kind] < wanted and kind in classes[image] and is_spare:
                chosen.add(image)
                kept.subtract(classes[image])
                drawn.update(classes[image])
    empty = [image for image in images if not classes[image]]
    chosen.update(empty[: min(max(round(share * len(empty)), 1 - len(chosen)), len(images) - 1)])
    if not chosen:
        got = f"got {len(images)} images, each with the last object of a class, which training keeps"
        raise ConfigError(f"--val {share}: {got}; expected more images, or a file for validation")
    names = {one["id"]: one["name"] for one in content["categories"]}
    print(f"--val {share}: images to train: {len(images) - len(chosen)}, to validate: {len(chosen)}")
    if alone := [names.get(kind, kind) for kind in total if not drawn[kind]]:
        print(f"classes in the images to train alone, for they are in too few: {join_some(alone)}")

    others = {key: value for key, value in content.items() if key != RENAMED}

    def part(is_val: bool) -> dict:
        images = [image for image in content["images"] if (image["id"] in chosen) == is_val]
        annotations = [one for one in content["annotations"] if (one["image_id"] in chosen) == is_val]
        return {**others, "images": images, "annotations": annotations}

    return part(False), part(True)
