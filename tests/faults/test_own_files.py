"""Damaged files that vitdense wrote itself: each is refused in a line, made anew with a line, or read as it was.

``make test WHAT=faults EXAMPLES=1000``. A file is a row of `FILES`; `KINDS` reads and writes the fields of its format.
"""

import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnx
import pytest
import torch
from commands import forget
from linear_vit import make
from mmengine.config import Config
from safetensors import safe_open
from safetensors.torch import save_file

import vitdense
from vitdense.extensions.curves.curves import draw_curves
from vitdense.extensions.features.map_store import MapStore
from vitdense.extensions.joined.commands import export_joined
from vitdense.extensions.operating_point.point import conditions_of, digest_of, read_point
from vitdense.extensions.proof import verify
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.load import load_config
from vitdense.mm.console import USER_ERRORS, explain
from vitdense.mm.data import coco, detection
from vitdense.mm.data.shapes import CLASSES, draw_dataset, draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.train import launch
from vitdense.mm.work_folder import find_checkpoint
from vitdense.runtime import Program

EXAMPLES, SECONDS = int(os.environ.get("EXAMPLES", "4")), 300
PHOTO = draw_image(np.random.default_rng(0), (96, 80))[0]
NAMES = ("background", *CLASSES)
MAPS = [torch.arange(12.0).reshape(1, 3, 2, 2)]
POINT = {"wish": "f1", "thresholds": dict.fromkeys(NAMES, 0.5), "precision": 0.5, "recall": 0.5}


def configured(folder):
    cfg = make(folder)
    cfg.train_cfg.update(max_iters=2, val_interval=9)
    cfg.default_hooks.checkpoint.update(interval=1, save_best=None)
    cfg.default_hooks.logger.interval = 1
    cfg.custom_hooks = []
    return cfg


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    with contextlib.redirect_stdout(io.StringIO()):
        launch.train(configured(folder))
        work = folder / "work"
        shutil.copy(folder / "work/iter_2.pth", folder / "alone.pth")
        save_file(torch.load(work / "iter_2.pth", weights_only=False)["state_dict"], folder / "alone.safetensors")
        cfg = load_config(work)
        args = Namespace(proof=True, with_preprocessing=False)
        export(cfg, str(work / "iter_2.pth"), Wish(folder / "program.onnx", "onnx"), args=args)
    point = {**POINT, "sha256": digest_of(str(work / "iter_2.pth")), "conditions": conditions_of(cfg, None, 0.2)}
    (work / "operating_point.json").write_text(json.dumps(point))
    store = MapStore(folder / "maps", "a" * 64, "float16")
    store.write("b" * 64, store.pack(MAPS))
    (folder / "maps.safetensors").symlink_to(store.path("b" * 64).relative_to(folder))
    draw_dataset(folder / "drawn", num_train=3, num_val=1, image_size=(64, 64))
    shutil.copy(folder / "drawn/annotations/instances_train.json", folder / "instances.json")
    rows(folder)
    return folder


@pytest.fixture(scope="module")
def joined(written):
    models = dict.fromkeys("ab", (load_config(written / "work"), str(written / "work/iter_2.pth")))
    export_joined(models, Wish(written / "joined.onnx", "onnx"), Namespace(proof=True, with_preprocessing=False))


def found(result):
    return [*result.names], result.semantic.tolist()


def load(folder):
    return found(vitdense.load(folder / "work")(PHOTO))


def load_alone(name):
    return lambda folder: found(vitdense.load(folder / "work", folder / name)(PHOTO))


def resume(folder):
    cfg = configured(folder)
    cfg.work_dir = str(folder / "work")
    launch.train(cfg, resume=str(folder / "work/iter_1.pth"))
    saved = torch.load(folder / "work/iter_2.pth", weights_only=False)
    return saved["meta"]["iter"], {key: x.tolist() for key, x in saved["state_dict"].items()}


def test(folder):
    return launch.test(configured(folder), str(folder / "alone.pth"))


test.__test__ = False


def latest(folder):
    return Path(find_checkpoint(folder / "work")).name


def point_of(folder):
    work = folder / "work"
    return read_point(str(work / "iter_2.pth"), load_config(work), [*NAMES], None, 0.2)


def maps_of(folder):
    store = MapStore(folder / "maps", "a" * 64, "float16")
    found = store.read("b" * 64) or store.pack(MAPS)
    return [x.tolist() for x in found.tensors], found.layouts


def rows(folder):
    """The objects of a data set, whose rows are kept for a file of this name in any folder."""
    file = folder / "instances.json"
    dataset = detection.CocoDataset(ann_file=str(file), data_prefix={"img": ""}, pipeline=[], lazy_init=True)
    with (
        mock.patch.object(dataset, "_kept_file", return_value=folder / "rows.safetensors"),
        mock.patch.object(detection, "state_of", return_value="as it was"),
    ):
        dataset.full_init()
    return [dataset.get_data_info(i)["instances"] for i in range(len(dataset))]


def run_program(name, engine="onnxruntime", model=""):
    def run(folder):
        status = verify.main([str(folder / name), "--engine", engine])
        answer = Program(folder / name, engine, model=model)(PHOTO).semantic.tolist()
        if status:
            raise ConfigError(f"verify: {status}")
        return answer

    return run


def check_program(name):
    def check(folder):
        if status := verify.main([str(folder / name)]):
            raise ConfigError(f"verify: {status}")
        return status

    return check


def annotations(folder):
    coco.forget()
    read = coco.examine(coco.read(folder / "instances.json"))
    if any(fault.grave for fault in read.faults):
        raise ConfigError(str(next(fault for fault in read.faults if fault.grave)))
    return True


def curves(folder):
    draw_curves([folder / "work"], folder / "curves.png")
    return True


class File(NamedTuple):
    """A file that vitdense writes.

    `stated` are beginnings of places of fields that nothing else tells: another sound value there is another answer.
    """

    path: str
    kind: str
    read: Callable[[Path], Any]
    stated: tuple[str, ...] = ()
    cost: int = 1  # examples are fewer by this factor


CHECKPOINT = ("meta/dataset_meta/classes", "meta/dataset_meta/palette", "state_dict")
FILES = {
    "last checkpoint, loaded": File("work/iter_2.pth", "torch", load, CHECKPOINT, 2),
    "checkpoint, loaded": File("alone.pth", "torch", load_alone("alone.pth"), CHECKPOINT, 2),
    "checkpoint, tested": File("alone.pth", "torch", test, CHECKPOINT, 4),
    "checkpoint, resumed": File("work/iter_1.pth", "torch", resume, ("state_dict", "optimizer", "param_sch"), 8),
    "weights": File("alone.safetensors", "safetensors", load_alone("alone.safetensors"), ("",), 2),
    "last_checkpoint": File("work/last_checkpoint", "bytes", latest),
    "config": File("work/upernet_swin_nano_shapes.py", "config", load, (), 4),
    "operating point": File(
        "work/operating_point.json", "json", point_of, ("absent", "wish", "thresholds", "prec", "recall")
    ),
    "cached features": File("maps.safetensors", "safetensors", maps_of),
    "kept rows": File("rows.safetensors", "safetensors", rows),
    "program": File("program.onnx", "onnx", run_program("program.onnx")),
    "proof": File("program.proof", "npz", check_program("program.onnx")),
    "joined program": File("joined.onnx", "onnx", run_program("joined.onnx", model="b"), (), 2),
    "joined proof": File("joined.proof", "npz", check_program("joined.onnx"), (), 2),
    "program in OpenVINO": File("program.onnx", "onnx", run_program("program.onnx", "openvino"), (), 2),
    "annotations": File("instances.json", "json", annotations, ("",)),
    "scalars": File("work/*/vis_data/scalars.json", "lines", curves, ("",)),
}


def read_tensors(path):
    with safe_open(path, "pt") as file:
        return {"tensors": {key: file.get_tensor(key) for key in file.keys()}, "about": file.metadata() or {}}  # noqa: SIM118


def write_tensors(tree, path):
    about = {str(key): x if isinstance(x, str) else json.dumps(x) for key, x in dict(tree["about"]).items()}
    save_file({key: torch.as_tensor(x).contiguous() for key, x in tree["tensors"].items()}, path, about)


def read_proof(path):
    return {name: json.loads(str(x)) if name.endswith("index") else x for name, x in np.load(path).items()}


def write_proof(tree, path):
    arrays = {name: json.dumps(x) if name.endswith("index") else x for name, x in tree.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def read_program(path):
    return {one.key: json.loads(one.value) for one in onnx.load(path).metadata_props}


def write_program(tree, path):
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {str(key): json.dumps(value) for key, value in tree.items()})
    onnx.save(model, path)


KINDS = {  # how the fields of a format are read and written
    "torch": (lambda path: torch.load(path, weights_only=False), torch.save),
    "safetensors": (read_tensors, write_tensors),
    "json": (lambda path: json.loads(path.read_text()), lambda tree, path: path.write_text(json.dumps(tree))),
    "lines": (
        lambda path: [*map(json.loads, path.read_text().splitlines())],
        lambda tree, path: path.write_text("".join(json.dumps(line) + "\n" for line in tree)),
    ),
    "npz": (read_proof, write_proof),
    "onnx": (read_program, write_program),
    "config": (
        lambda path: Config.fromfile(path).to_dict(),
        lambda tree, path: path.write_text("".join(f"{key} = {value!r}\n" for key, value in tree.items())),
    ),
}


def of_bytes(draw, content, other):
    at = draw.randrange(len(content))
    damages = {
        "absent": None,
        "empty": b"",
        "cut": content[:at],
        "zeros": content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :],
        "all zeros": bytes(len(content)),
        "text": b"no file of vitdense\n",
        "of another kind": other,
        "not UTF-8": b"\xff\xfe" + content,
    }
    name = draw.choice([*damages])
    return name, damages[name]


ODD = [..., None, "odd", "", 7, -1, 1e300, float("nan"), float("inf"), True, [], {}, [[]], [None], {"odd": 1}, b"\xff"]


def other_value(draw, value):
    if isinstance(value, np.ndarray) and value.size:
        return draw.choice(
            [("longer", np.concatenate([value, value])), ("flat", value.ravel()), ("zeros", value * 0), ("absent", ...)]
        )
    if isinstance(value, torch.Tensor) and value.numel():
        return draw.choice([("NaN", value.float() * torch.nan), ("longer", torch.cat([value[None]] * 2)),
                            ("another type", value.to(torch.complex64)), ("absent", ...), ("None", None)])  # fmt: skip
    if isinstance(value, list | tuple) and len(value) > 1 and draw.random() < 0.5:
        kind = type(value)
        return draw.choice(
            [("reversed", kind([*value][::-1])), ("shorter", kind([*value][:-1])), ("longer", kind([*value, value[0]]))]
        )
    if isinstance(value, dict) and draw.random() < 0.3:
        return "a newer field", {**value, "of_version_9": "new"}
    if isinstance(value, str) and draw.random() < 0.3:
        return draw.choice([("version", "0.2.0"), ("version", "9.9"), ("renamed", value + " other")])
    new = draw.choice(ODD)
    return f"{new!r}"[:20].replace("Ellipsis", "absent"), copy.deepcopy(new)


def of_fields(draw, tree):
    node, path = tree, []
    while True:
        keys = [*node] if isinstance(node, dict) else [*range(len(node))]
        key = draw.choice(keys)
        path.append(str(key))
        child = node[key]
        if not isinstance(child, dict | list) or not child or draw.random() < 0.3:
            break
        node = child
    done, new = other_value(draw, node[key])
    if new is ...:
        del node[key]
    else:
        node[key] = new
    return f"{'/'.join(path)}: {done}", "/".join(path)


class HangError(BaseException):
    pass


def hang(*_):
    raise HangError


def outcome(file, folder):
    forget()
    out = io.StringIO()
    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return "answer", file.read(folder), out.getvalue()
    except HangError:
        return "hang", "", ""
    except SystemExit as end:
        return "refused" if end.code == 2 else "traceback", str(end.code), out.getvalue()
    except (*USER_ERRORS, ValueError) as error:
        of_program = not isinstance(error, USER_ERRORS) and "runtime.py" in traceback.format_exc()
        if not isinstance(error, USER_ERRORS) and not (of_program and str(error).count(file.path.partition(".")[0])):
            return "traceback", traceback.format_exc(), ""
        try:
            line = explain(error) if not of_program else str(error)
        except OSError:
            return "traceback", traceback.format_exc(), ""
        return ("refused" if "\n" not in line else "traceback"), line, ""
    except Exception:
        return "traceback", traceback.format_exc(), ""
    finally:
        signal.alarm(0)


def lines(text):
    return {line.partition(" - ")[2] or line for line in text.splitlines()}


def files_of(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * x.startswith("joined")) for x in FILES])
def test_damaged_files_of_ours(written, tmp_path, name, request):
    if name.startswith("joined"):
        request.getfixturevalue("joined")
    if name.endswith("OpenVINO"):
        pytest.importorskip("openvino")
    file, folder = FILES[name], tmp_path / "copy"
    draw = random.Random(f"{os.environ.get('SEED', '0')} {name}")
    shutil.copytree(written, folder, symlinks=True)
    kind, right, printed = outcome(file, folder)
    assert kind == "answer", right
    (relative,) = [path.relative_to(folder) for path in folder.glob(file.path)]
    other = (written / ("program.proof" if "proof" not in name else "program.onnx")).read_bytes()
    counts, wrong = Counter(), []
    for _ in range(-(-EXAMPLES // file.cost)):
        shutil.rmtree(folder)
        shutil.copytree(written, folder, symlinks=True)
        path = (folder / relative).resolve()
        if file.kind == "bytes" or draw.random() < 0.25:
            done, content = of_bytes(draw, path.read_bytes(), other)
            where = done
            path.unlink()
            if content is not None:
                path.write_bytes(content)
        else:
            read, write = KINDS[file.kind]
            tree = read(path)
            done, where = of_fields(draw, tree)
            try:
                write(tree, path)
            except Exception:  # the format has no such value
                continue
        before = files_of(folder)
        kind, got, said = outcome(file, folder)
        if kind == "answer":
            told = lines(said) - lines(printed)
            same = repr(got) == repr(right)
            is_stated = where.startswith(file.stated or "\0")
            kind = "right" if same else "told" if told else "stated" if is_stated else "silent"
        if before - files_of(folder):
            kind = "lost"
        counts[kind] += 1
        if kind not in ("right", "refused", "told", "stated"):
            wrong.append(f"{kind}: {name}: {done}\n{got if kind == 'traceback' else ''}")
    print(f"\n{name}: {dict(counts)}")
    assert not wrong, "\n".join([f"{len(wrong)} of {counts.total()}", *wrong])
