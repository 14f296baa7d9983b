"""A trained detector or segmentor: images in, results out."""

import copy
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import fill
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.config import query
from vitdense.mm.config.base import Asked, build_model
from vitdense.mm.config.diff import NAME_OUTPUTS, OF_RESULTS, check_task, log_differences, names_of
from vitdense.mm.config.model_index import is_published, load_trained
from vitdense.mm.config.passes import PREDICTING, built
from vitdense.mm.data.images import Images, read_pixels, run_steps
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import Inference, check_device, check_score
from vitdense.mm.work_folder import find_checkpoint
from vitdense.results.result import Result
from vitdense.runtime import SCORE, OperatingPoint, least, segments_of
from vitdense.seams import call

Threshold = float | Sequence[float]  # minimum score of detections, or of each class
_process = os.getpid()  # the process with OpenMP's threads


def load(
    config: str | Path,
    checkpoint: str | Path | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    score_thr: float | None = None,
    tiles: int | None = None,
    overlap: float = 0.2,
    onednn: bool = True,
    classes: Sequence[str] | None = None,
) -> "Predictor":
    """Load a trained model. ``model = vitdense.load("work_dirs/pets_swin"); model("photo.jpg").boxes``.

    Args:
        config: A work folder, for its config and latest checkpoint; the name of a published model, see
            `find_published`, whose file is downloaded once; or a config: a file, the name of a recipe, or
            ``mmdet::FOLDER/NAME.py`` of an installed package.
        checkpoint: A file, address or work folder; needed for a config.
        device, dtype, score_thr, tiles, overlap, onednn: See `vitdense.mm.precision.Inference`.
        classes: Class names by output, for a file of another project without names; see `load_model`.

    Raises:
        ValueError: There is no such config, or it is not one of mmdet or mmseg, or an option has an unknown value.
        CheckpointNotFoundError: There is no such checkpoint.
        CheckpointMismatchError: It does not fit the model.
    """
    inference = Inference(device, dtype, score_thr, tiles, overlap, onednn)
    cfg, file = load_trained(str(config), None if checkpoint is None else str(checkpoint))
    return Predictor(cfg, find_checkpoint(file), inference, classes)


class Predictor:
    """A trained detector or segmentor, ready for images.

    Args:
        cfg: A config of mmdet or mmseg, from `load_config`.
        checkpoint: See `find_checkpoint`.
        inference: Options of prediction.
        classes: See `load`.

    Attributes:
        model: The detector or segmentor of mmdet or mmseg, in eval mode.
        names: Class names.
        palette: Colours of the classes, [classes, 3] uint8 RGB; None for those of `Result`.
        skeleton: Pairs of keypoints that pictures join.
        dataset: Config of the test data.
        reader: Reads images by the test pipeline.
        operating_point: The checkpoint's operating point, read by an extension; None without one.
        score_thr: Minimum score of detections, one for all classes or one for each.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoint: str,
        inference: Inference = Inference(),  # noqa: B008 -- frozen
        classes: Sequence[str] | None = None,
    ) -> None:
        scope = cfg.get("default_scope", "mmdet")
        if scope not in ("mmdet", "mmseg"):
            raise ConfigError(f"{cfg.filename}: got default_scope={scope!r}, expected 'mmdet' or 'mmseg'")
        if scope == "mmseg" and inference.tiles is not None:
            raise ConfigError(query.NO_TILES)
        self.model = load_model(cfg, checkpoint, inference.device, classes)
        self.inference = inference
        self.names: Sequence[str] = self.model.dataset_meta["classes"]
        self.operating_point: OperatingPoint | None = None
        self.score_thr: Threshold = SCORE if inference.score_thr is None else inference.score_thr
        self.skeleton = self.model.dataset_meta.get("skeleton", ())
        palette = self.model.dataset_meta.get("palette") or ()  # mm accepts palettes of another length
        self.palette = np.array(palette, np.uint8) if len(palette) == len(self.names) else None
        self.dataset = next(query.leaf_datasets(self.model.cfg.test_dataloader.dataset))
        steps = query.test_steps(self.model.cfg)
        self._step = self.model.test_step
        if inference.tiles is not None:
            from vitdense.mm.heads.tiled import TiledDetector  # here, for segmentors do without mmdet

            steps, of_tile = query.tiled_pipeline(steps)
            self._step = TiledDetector(self.model, inference.tiles, inference.overlap, of_tile).test_step
        self.reader = ImageReader(steps)
        call("load", "after", model=self, checkpoint=checkpoint)

    @overload  # text is an iterable of text, too
    def __call__(self, images: Images, score_thr: float | None = ..., batch_size: int = ...) -> Result: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, images: Iterable, score_thr: float | None = ..., batch_size: int = ...) -> list[Result]: ...

    def __call__(
        self, images: Images | Iterable[Images], score_thr: float | None = None, batch_size: int = 8
    ) -> Result | list[Result]:
        """Predict.

        Args:
            images: One image, or several: paths; the bytes of files; Pillow's images; arrays [H, W, 3] of uint8, RGB;
                tensors [3, H, W] of uint8, RGB. Sizes may differ. All kinds give the same result for the same pixels.
            score_thr: Minimum score of detections, 0 to 1; by default the model's.
            batch_size: Up to this many images of the same size are predicted together, with the same results as alone,
                up to rounding.

        Returns:
            The result of the image, or a list of one per image; see `stream` for many.

        Raises:
            ConfigError: An image cannot be read or is of another kind; the score is not from 0 to 1; or the batch has
                no image.
        """
        if isinstance(images, Images):
            return next(self.stream([images], score_thr, batch_size))
        return list(self.stream(images, score_thr, batch_size))

    def stream(self, images: Iterable[Images], score_thr: float | None = None, batch_size: int = 8) -> Iterator[Result]:
        """Predict on any iterable of images: ``for result in model.stream(paths)``; see `__call__`.

        At most `batch_size` images are read ahead, and none is kept after its result.
        """
        threshold = self.threshold(score_thr)
        check_batches(images, batch_size)
        return self._stream(iter(images), threshold, batch_size)

    def threshold(self, score_thr: float | None) -> Threshold:
        """The minimum score of objects: as given, or the model's; see `__call__`."""
        if score_thr is not None:
            check_score(score_thr)
        return self.score_thr if score_thr is None else score_thr

    def _stream(self, images: Iterator[Images], threshold: Threshold, batch_size: int) -> Iterator[Result]:
        while batch := list(islice(images, batch_size)):
            pixels = [self.reader.pixels(image) for image in batch]
            found = self.results(batch, pixels, threshold)
            del batch, pixels
            yield from found

    def results(self, images: Sequence[Images], pixels: Sequence[np.ndarray], threshold: Threshold) -> Iterator[Result]:
        found, pixels = self.samples(images, pixels, threshold), [*pixels]
        del images
        while found:
            yield self.result(found.pop(0), pixels.pop(0), threshold)

    @torch.no_grad()
    def samples(
        self, images: Sequence[Images], pixels: Sequence[np.ndarray], threshold: Threshold = 0.0
    ) -> list[BaseDataElement]:
        """Predictions as data samples of mmdet or mmseg, with all detections of the head.

        Detections below the threshold have no mask. For `pixels` see `ImageReader`.
        """
        global _process
        if os.getpid() != _process:  # a fork lacks OpenMP's threads, and would wait for them
            torch.set_num_threads(1)
            _process = os.getpid()
        data = [*map(self.reader.inputs, images, pixels)]
        for one in data:
            one["data_samples"].set_metainfo({"mask_score_thr": float(np.min(threshold))})
        found: list = [None] * len(data)
        groups: dict[tuple, list[int]] = {}
        for i, one in enumerate(data):
            groups.setdefault(tuple(one["inputs"].shape), []).append(i)
        for group in groups.values():
            with self.inference.computing():
                for i, sample in zip(group, self._step(pseudo_collate([data[i] for i in group]))):
                    found[i] = sample
        return found

    def result(self, sample: BaseDataElement, pixels: np.ndarray, threshold: Threshold) -> Result:
        """A data sample of `samples` as a result, without detections below the threshold."""
        shown: dict[str, Any] = {"image": self.reader.picture(pixels), "names": self.names, "palette": self.palette}
        if "pred_sem_seg" in sample:
            return Result(**shown, semantic=sample.pred_sem_seg.data[0].cpu().numpy().astype(np.int64))
        if "pred_panoptic_seg" in sample:
            codes = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy()  # [H, W]
            things = self.model.panoptic_fusion_head.num_things_classes
            shown["panoptic"], shown["segments"] = segments_of(codes, len(self.names), things)
            if "pred_instances" not in sample:
                return Result(**shown)
        from vitdense.mm.heads.rle_masks import fields_of  # here, for segmentors do without mmdet

        found = sample.pred_instances
        scores, least_scores = found.scores.cpu(), least(threshold, found.labels.cpu().numpy())
        found = found[scores >= torch.as_tensor(least_scores).to(scores)].cpu()  # some masks are there already
        shown |= {"skeleton": self.skeleton, "category_ids": self.model.dataset_meta.get("category_ids", ())}
        return Result(**shown, **fields_of(found[found.scores.argsort(descending=True, stable=True)]))


def check_batches(images: object, batch_size: object) -> None:
    """Raise a ConfigError unless these are several images, and a number of them."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size: got {batch_size!r}, expected a number of images, at least 1")
    if isinstance(images, Images) or not isinstance(images, Iterable):
        raise ConfigError(f"images: got {type(images).__name__}, expected several images, such as a list of paths")


class ImageReader:
    """Reads images as a model gets them, by `test_steps`.

    `own_reader` is the step that reads files, if it is not mmcv's or does not return colours. `loader` is one that
    takes arrays too: with `load`, `picture`, and `channels` of `bands`, it reads images of other channels.
    """

    def __init__(self, steps: Sequence[Mapping]) -> None:
        first, color_type = query.type_name(steps[0]), steps[0].get("color_type", "color")
        is_known = first in ("LoadImageFromFile", "LoadImage") and "color" in color_type
        self._reads = {"color_type": color_type, "backend": steps[0].get("imdecode_backend", "cv2")}
        self._dtype = np.float32 if steps[0].get("to_float32") else np.uint8
        self._steps = Compose(steps[1:] if is_known else steps)
        loader = next(iter(self._steps.transforms), None)
        self.loader = loader if hasattr(loader, "picture") else None
        self.own_reader = None if is_known or self.loader else first

    def pixels(self, image: Images) -> np.ndarray:
        """The pixels of an image as the config's reader gives them: [H, W, 3] uint8 RGB, see `read_pixels`; of a
        `loader` [H, W, bands], numbers as in the files.
        """
        return self.loader.load(image) if self.loader else read_pixels(image, **self._reads)

    def picture(self, pixels: np.ndarray) -> np.ndarray:
        """What a picture shows of `pixels`, [H, W, 3] uint8 RGB."""
        return self.loader.picture(pixels) if self.loader else pixels

    def inputs(self, image: Images, pixels: np.ndarray) -> Mapping[str, Any]:
        """Run the pipeline on an image whose pixels were read: ``inputs`` ``[bands, h, w]`` and ``data_samples``.

        With an `own_reader` the file is decoded again.
        """
        path = str(image) if isinstance(image, (str, Path)) else ""
        if self.loader:
            return run_steps(self._steps, pixels, path)
        if self.own_reader is None:
            return run_steps(self._steps, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR).astype(self._dtype, copy=False), path)
        if not path:
            raise ConfigError(
                f"image: got {type(image).__name__}, expected a path: the test pipeline begins with "
                f"{self.own_reader}, which reads files"
            )
        return self._steps({"img_path": path, "img_id": 0})


def load_model(cfg: Config, checkpoint: str, device: str, classes: Sequence[str] | None = None) -> BaseModel:
    """Build the detector or segmentor of a config with the weights of a checkpoint, in eval mode.

    `dataset_meta` of the model has `classes`, and `palette` if there is one. They come from the checkpoint, also from
    RF-DETR's own trainer; else from `classes`, or, for a published model, from the type of the test data; else from the
    test data of the config, which is logged. If a file of another project, or `classes`, names the outputs, heads get
    as many outputs.

    Args:
        cfg: The config; it is not changed.
        checkpoint: A file or an address.
        device: See `vitdense.mm.precision.check_device`.
        classes: Class names by output, for a checkpoint without names; empty for an output without a class.
    """
    check_device("device", device)
    allow_pickle = any(hook.get("allow_pickle", False) for _, hook in query.hooks(cfg))  # of ExactLoadHook
    saved: Mapping[str, Any] = read_checkpoint(checkpoint, "cpu", allow_pickle)
    check_task(saved, cfg, checkpoint)
    log_differences(saved, cfg, OF_RESULTS)
    if "operating_point" in (saved.get("meta") or {}):
        said = "its operating point, which 0.3 wrote, is not read; `vitdense test --operating-point` finds it again"
        print_log(f"{checkpoint}: {said}", "current", logging.WARNING)
    cfg = copy.deepcopy(cfg)
    meta, saved, is_named = names_of(saved, cfg, checkpoint, classes, is_published(checkpoint))
    names, things = (len(meta.get(f"{key}classes") or ()) for key in ("", "thing_"))
    others = query.class_counts(cfg.model) - {names, things}
    if not is_named and (others or not names):
        raise ConfigError(
            f"{checkpoint} has no class names (meta.dataset_meta), and the test data of the config do not have "
            f"those of its heads; {NAME_OUTPUTS}"
        )
    if others:
        raise ConfigError(
            f"{checkpoint} was trained on {names} classes, but heads of {cfg.filename} have "
            f"{' and '.join(map(str, sorted(others)))}. Give the config in its work folder"
        )
    to_build = built(cfg, Asked(checkpoint=checkpoint), PREDICTING)
    model: BaseModel = build_model(to_build)
    try:
        state, report = fit_whole(model, saved, source=checkpoint)
    except CheckpointMismatchError as error:
        if is_named:
            raise
        raise ConfigError(
            f"{checkpoint} has no class names, and the {names} of the config do not fit; {NAME_OUTPUTS}. {error}"
        ) from error
    for said in filter(None, (report.classes, report.queries)):
        print_log(f"{checkpoint}: {said}")
    if hasattr(model, "backbone"):
        own = {key: x for key, x in state.items() if key.startswith("backbone.")}
        fill(model.backbone, {key.removeprefix("backbone."): x for key, x in own.items()}, is_own=True)
    model.load_state_dict(state)
    model.dataset_meta, model.cfg = meta, cfg
    return model.to(device).eval()
