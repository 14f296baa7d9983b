"""The command `vitdense`, also `python -m vitdense`: a table of commands, each imported when it runs, and the doctor.

The doctor tells versions of the packages, devices, the ops that mmcv runs on, and how to repair what is missing.
"""

import argparse
import importlib
import importlib.metadata
import platform
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import vitdense
from vitdense import seams
from vitdense.console import in_utf8, showing
from vitdense.ops.finder import INSTALL_MM, ops_in_use
from vitdense.ops.missing import BUILD_COMMAND


class Package(NamedTuple):
    module: str
    requirement: str  # as in pyproject.toml
    purpose: str
    required: bool = False  # to build backbones


PACKAGES = (
    Package("torch", "torch>=2.6", "everything", required=True),
    Package("torchvision", "torchvision>=0.21", "stand-in for the compiled ops of mmcv", required=True),
    Package("timm", "timm>=1.0.9", "building blocks, weights by name", required=True),
    Package("safetensors", "safetensors>=0.8", "reading checkpoints", required=True),
    Package("mmengine", "onedl-mmengine>=0.10.11", "runner and registries of mmdet and mmseg"),
    Package("mmcv", "onedl-mmcv>=2.3.6", "ops and transforms of mmdet and mmseg"),
    Package("mmdet", "onedl-mmdetection>=3.5.1", "detection"),
    Package("mmseg", "onedl-mmsegmentation>=1.4.2", "segmentation"),
    Package("pycocotools", "pycocotools>=2.0.7", "COCO masks and metric"),
    Package("hotcoco", "hotcoco>=1.3", "fast COCO metric"),
)

TOOLS = Path(__file__).parent / ".mim/tools"  # as in a clone
COMMANDS = {
    "new": "write a config for your own data",
    "check": "check a config and its data, without training",
    "train": "train a detector or a segmentor",
    "test": "evaluate a checkpoint",
    "predict": "predict on images",
    "export": "export a trained model",
    "swap": "another backbone in a config you already have",
    "demo": "train, predict and evaluate a small detector on drawn shapes",
    "convert": "convert a checkpoint to the names of another project",
    "flops": "count parameters and multiply-adds of a config",
    "benchmark": "compare a backbone with another project's; in a clone",
    "plot": "draw the curves of training runs",
}
# What 0.4 removed, and the way around it; an entry stays for one version.
REMOVED = {
    "card": "vitdense.create(NAME).cfg has the facts of a model, docs/model-zoo.md the figures of all",
    "ops": "write custom_imports = dict(imports=['vitdense'], allow_failed_imports=False) into the config, or import "
    "vitdense before mmdet and mmseg",
    "train --batch-size auto": "give a number; vitdense check says the memory of a step",
    "train --replay": "leave it out: a training that refuses a step says why in its log",
    "test --report": "--out FILE.json has the metrics; hotcoco has tables by class and size, and the confusion",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or the doctor where none is named; the exit status."""
    if argv is None:
        in_utf8()
    parser = argparse.ArgumentParser("vitdense", description="Without a command: report the environment.")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    others = seams.commands()
    for name, text in {**COMMANDS, **{name: text for name, (_, text) in others.items()}}.items():
        commands.add_parser(name, help=text, add_help=False)  # each has a parser of its own
    commands.add_parser("doctor", help="report the environment, and how to repair it")
    refuse_removed(sys.argv[1:] if argv is None else argv)
    args, rest = parser.parse_known_args(argv)
    if args.command in COMMANDS or args.command in others:
        return run(args.command, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    with showing():
        return report()


def refuse_removed(argv: Sequence[str]) -> None:
    """Exit with status 2 and one line on a command or an option of `REMOVED`."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name, way in REMOVED.items():
        command, *option = name.split()
        places = range(1, len(words) - len(option) + 1)
        if words[:1] == [command] and (not option or any(words[i : i + len(option)] == option for i in places)):
            print(f"error: {name} was removed in 0.4; {way}", file=sys.stderr)
            sys.exit(2)


def run(command: str, argv: Sequence[str]) -> int:
    """Run a command: a module of `vitdense.mm.cli` or of an extension, or a file of tools/; the exit status."""
    module, _ = seams.commands().get(command, (f"vitdense.mm.cli.{command}", ""))
    tool = TOOLS / f"{command}.py"
    try:
        if not tool.is_file():
            return importlib.import_module(module).main(argv)
        sys.argv = [f"vitdense {command}", *argv]
        runpy.run_path(str(tool))["main"]()
    except ModuleNotFoundError as error:
        if error.name != "mmengine":
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report() -> int:
    """Print the report; 0 if backbones can be built, 1 if something they need is missing or broken."""
    versions = _installed_versions()
    rows = [("vitdense", vitdense.__version__), ("python", f"{platform.python_version()} on {platform.platform()}")]
    help_lines, needed = [], []
    for package in PACKAGES:
        found = versions[package.module]
        rows.append((package.module, ", ".join(f"{v} ({name})" for name, v in found.items()) or "not installed"))
        if fault := _find_fault(package, found):
            help_lines.append(f"{package.module} {fault}: {_install_command(package, versions)}")
            if package.required:
                needed.append(package.module)
    if "torch" not in needed:
        rows += [("device", device) for device in _devices()]
    ops = ops_in_use()
    rows.append(("mmcv ops", f"{ops.kind} ({ops.detail})" if ops.detail else ops.kind))
    if ops.kind == "stand-in":
        help_lines.append(f"compiled ops instead of the stand-in, with the CUDA toolkit of your torch: {BUILD_COMMAND}")
    print(*(f"{name:18}{value}" for name, value in rows), "", *help_lines, sep="\n")
    if needed:
        print(f"Not ready: backbones need {', '.join(needed)}.")
    elif versions["mmengine"] and versions["mmcv"] and (versions["mmdet"] or versions["mmseg"]):
        print("Ready.")
    else:
        print(f"Ready for backbones in Python. For recipes and commands as well: {INSTALL_MM}")
    return 1 if needed else 0


def _installed_versions() -> dict[str, dict[str, str]]:
    """Per package, the versions of the installed distributions that provide it: module -> distribution -> version."""
    providers = importlib.metadata.packages_distributions()
    return {p.module: {n: importlib.metadata.version(n) for n in providers.get(p.module, ())} for p in PACKAGES}


def _find_fault(package: Package, found: dict[str, str]) -> str | None:
    name, minimum = package.requirement.split(">=")
    if not found:
        return f"is not installed ({package.purpose})"
    if len(found) > 1:
        return f"comes from {' and '.join(found)}, which overwrite each other"
    if name in found and _release(found[name]) < _release(minimum):
        return f"is older than {minimum}"
    try:
        importlib.import_module(package.module)
        if package.module == "torchvision":
            _call_nms()
    except Exception as error:  # a broken package can raise anything
        return f"does not work ({type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')})"
    return None


def _install_command(package: Package, versions: dict[str, dict[str, str]]) -> str:
    """The command that repairs a package. It uninstalls first: other distributions write into the same folder."""
    requirement, torch = package.requirement, versions["torch"].get("torch", "")
    if package.module == "torchvision" and torch.startswith("2."):
        # It must be the release for this torch: 0.21 for 2.6, 0.26 for 2.11, always 15 apart.
        requirement = f"torchvision==0.{_release(torch)[1] + 15}.*"
    uninstall = f"pip uninstall -y {' '.join(versions[package.module])} && " if versions[package.module] else ""
    return f'{uninstall}pip install "{requirement}"'


def _release(version: str) -> tuple[int, ...]:
    """2.11.0+cu128 -> (2, 11, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _call_nms() -> None:
    """Call an op of torchvision: a build for another torch or without CUDA can be imported and fails here."""
    import torch
    from torchvision.ops import nms

    device = "cuda" if torch.cuda.is_available() else "cpu"
    nms(torch.zeros(1, 4, device=device), torch.ones(1, device=device), 0.5)


def _devices() -> list[str]:
    import torch

    found = [f"CPU, {torch.get_num_threads()} threads"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        name = getattr(torch.get_device_module(kind), "get_device_name", lambda i: "")  # mps has none
        found += [f"{kind}:{i} {name(i)}" for i in range(torch.accelerator.device_count())]
    return found


if __name__ == "__main__":
    sys.exit(main())
