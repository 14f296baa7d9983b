"""The command `vitdense`, also `python -m vitdense`: a table of commands, each imported when it runs, and the doctor.

The doctor tells versions of the packages, devices, the ops that mmcv runs on, and how to repair what is missing.
"""

import argparse
import gc
import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping, Sequence

import vitdense
from vitdense import seams
from vitdense.console import in_utf8, showing
from vitdense.ops.finder import INSTALL_MM, ops_in_use
from vitdense.ops.table import BUILD_COMMAND

# Module -> requirement as in pyproject.toml, and purpose.
PACKAGES = {
    "torch": ("torch>=2.6", "everything"),
    "torchvision": ("torchvision>=0.21", "stand-in for the compiled ops of mmcv"),
    "timm": ("timm>=1.0.21", "building blocks, weights by name"),
    "safetensors": ("safetensors>=0.8", "reading checkpoints"),
    "mmengine": ("onedl-mmengine>=0.10.11", "runner and registries of mmdet and mmseg"),
    "mmcv": ("onedl-mmcv>=2.3.6", "ops and transforms of mmdet and mmseg"),
    "mmdet": ("onedl-mmdetection>=3.5.1", "detection"),
    "mmseg": ("onedl-mmsegmentation>=1.4.2", "segmentation"),
    "pycocotools": ("pycocotools>=2.0.8", "COCO masks and metric"),
    "hotcoco": ("hotcoco>=1.3", "fast COCO metric"),
}
REQUIRED = ("torch", "torchvision", "timm", "safetensors")  # to build backbones

# Command -> group of the help, and its line there.
COMMANDS = {
    "new": ("prepare", "write a config for your own data"),
    "check": ("prepare", "check a config and its data, without training"),
    "flops": ("prepare", "count parameters and multiply-adds of a config"),
    "demo": ("train", "train, predict and evaluate a small detector on drawn shapes"),
    "train": ("train", "train a detector or a segmentor"),
    "test": ("train", "evaluate a checkpoint"),
    "predict": ("use", "predict on images"),
    "export": ("use", "export a trained model"),
    "convert": ("use", "convert a checkpoint to the names of another project"),
    "benchmark": ("use", "compare a backbone with another project's; in a clone"),
}
DOCTOR = {"doctor": ("prepare", "report the environment, and how to repair it")}
# What 0.4 removed, and the way around it; an entry stays for one version.
REMOVED = {
    "card": "vitdense.create(NAME).cfg has the facts of a model, docs/model-zoo.md the figures of all",
    "ops": "write custom_imports = dict(imports=['vitdense'], allow_failed_imports=False) into the config, or import "
    "vitdense before mmdet and mmseg",
    "train --batch-size auto": "give a number; vitdense check says the memory of a step",
    "train --replay": "leave it out: a training that refuses a step says why in its log",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or the doctor where none is named; the exit status."""
    if argv is None:
        in_utf8()
        gc.disable()  # a sixth of the time of imports; `exit_on_user_error` switches it on again
    commands = {**COMMANDS, **seams.merged("commands"), **DOCTOR}
    parser = argparse.ArgumentParser(
        "vitdense",
        usage="vitdense COMMAND ...",
        description="Without a command: report the environment. vitdense COMMAND --help lists its options.",
        epilog=listed(commands),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=commands, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # of the command's own parser
    refuse_removed(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(argv)
    is_doctor = args.command in (None, *DOCTOR)
    if args.rest and is_doctor:
        parser.error(f"unrecognized arguments: {' '.join(args.rest)}")
    try:
        if not is_doctor:
            return seams.run(args.command, args.rest)
        with showing():
            return report()
    except KeyboardInterrupt:  # in the imports: later `exit_on_user_error` handles it
        print("\nstopped", file=sys.stderr)
        return 130


def listed(commands: Mapping[str, tuple[str, str]]) -> str:
    """The commands in their groups, a line each."""
    lines = []
    for group in dict.fromkeys(group for group, _ in commands.values()):
        lines += ["", f"{group}:", *(f"  {name:12}{text}" for name, (of, text) in commands.items() if of == group)]
    return "\n".join(lines[1:])


def refuse_removed(argv: Sequence[str]) -> None:
    """Exit with status 2 and one line on a command or an option of `REMOVED`."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name, way in REMOVED.items():
        command, *option = name.split()
        places = range(1, len(words) - len(option) + 1)
        if words[:1] == [command] and (not option or any(words[i : i + len(option)] == option for i in places)):
            print(f"error: {name} was removed in 0.4; {way}", file=sys.stderr)
            sys.exit(2)


def report() -> int:
    """Print the report; 0 if backbones can be built, 1 if something they need is missing or broken."""
    versions = _installed_versions()
    rows = [("vitdense", vitdense.__version__), ("python", f"{platform.python_version()} on {platform.platform()}")]
    repairs = {}
    for module, found in versions.items():
        rows.append((module, ", ".join(f"{v} ({name})" for name, v in found.items()) or "not installed"))
        if fault := _find_fault(module, found):
            repairs[module] = f"{module} {fault}: {_install_command(module, versions)}"
    if "torch" not in repairs:
        rows += [("device", device) for device in _devices()]
    ops = ops_in_use()
    rows.append(("mmcv ops", f"{ops.kind} ({ops.detail})" if ops.detail else ops.kind))
    print(*(f"{name:18}{value}" for name, value in rows), "", *repairs.values(), sep="\n")
    if ops.kind == "stand-in":
        print(f"compiled ops instead of the stand-in, with the CUDA toolkit of your torch: {BUILD_COMMAND}")
    if needed := [module for module in REQUIRED if module in repairs]:
        print(f"Not ready: backbones need {', '.join(needed)}.")
    elif versions["mmengine"] and versions["mmcv"] and (versions["mmdet"] or versions["mmseg"]):
        print("Ready.")
    else:
        print(f"Ready for backbones in Python. For recipes and commands as well: {INSTALL_MM}")
    return 1 if needed else 0


def _installed_versions() -> dict[str, dict[str, str]]:
    """Module -> installed distributions that provide it -> version."""
    providers = importlib.metadata.packages_distributions()
    return {module: {x: importlib.metadata.version(x) for x in providers.get(module, ())} for module in PACKAGES}


def _find_fault(module: str, found: dict[str, str]) -> str | None:
    requirement, purpose = PACKAGES[module]
    name, minimum = requirement.split(">=")
    if not found:
        return f"is not installed ({purpose})"
    if len(found) > 1:
        return f"comes from {' and '.join(found)}, which overwrite each other"
    if name in found and _release(found[name]) < _release(minimum):
        return f"is older than {minimum}"
    try:
        importlib.import_module(module)
        if module == "torchvision":
            _call_nms()
    except Exception as error:  # a broken package can raise anything
        return f"does not work ({type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')})"
    return None


def _install_command(module: str, versions: dict[str, dict[str, str]]) -> str:
    """The command that repairs a package. It uninstalls first: other distributions write into the same folder."""
    command = f'pip install "{PACKAGES[module][0]}"'
    if module == "torchvision" and "torch" in versions["torch"]:  # pip then takes its release for this torch
        command += f" torch=={versions['torch']['torch'].partition('+')[0]}"
    return f"pip uninstall -y {' '.join(versions[module])} && {command}" if versions[module] else command


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
