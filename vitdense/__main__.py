"""`python -m vitdense`: versions of the packages, devices, the ops mmcv runs on, and how to mend what is missing."""

import importlib
import importlib.metadata
import platform
import re
import sys
from typing import NamedTuple

import vitdense
from vitdense.ops.finder import BUILD_COMMAND, ops_in_use


class Package(NamedTuple):
    """An import name, the requirement that provides it, what it is for, and whether backbones need it."""

    module: str
    requirement: str  # as in pyproject.toml
    purpose: str
    required: bool = False


PACKAGES = (
    Package("torch", "torch>=2.6", "everything", required=True),
    Package("torchvision", "torchvision>=0.21", "the stand-in for the compiled ops of mmcv", required=True),
    Package("timm", "timm>=1.0.9", "building blocks, weights by name", required=True),
    Package("safetensors", "safetensors>=0.4", "reading checkpoints", required=True),
    Package("mmengine", "onedl-mmengine>=0.10.11", "runner and registries of mmdet and mmseg"),
    Package("mmcv", "onedl-mmcv>=2.3.6", "ops and transforms of mmdet and mmseg"),
    Package("mmdet", "onedl-mmdetection>=3.5.1", "detection"),
    Package("mmseg", "onedl-mmsegmentation>=1.4.2", "segmentation"),
    Package("pycocotools", "pycocotools>=2.0.7", "COCO masks and metric"),
    Package("faster_coco_eval", "faster-coco-eval>=1.6", "the fast COCO metric"),
)


def main() -> int:
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
    print(f"Not ready: backbones need {', '.join(needed)}." if needed else "Ready.")
    return 1 if needed else 0


def _installed_versions() -> dict[str, dict[str, str]]:
    """For each package, the versions by name of the installed distributions that provide it."""
    providers = importlib.metadata.packages_distributions()
    return {p.module: {n: importlib.metadata.version(n) for n in providers.get(p.module, ())} for p in PACKAGES}


def _find_fault(package: Package, found: dict[str, str]) -> str | None:
    """What is wrong with a package that these distributions provide; None: nothing."""
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
            _try_torchvision()
    except Exception as error:  # a broken package can raise anything; the report has to survive all of it
        return f"does not work ({type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')})"
    return None


def _install_command(package: Package, versions: dict[str, dict[str, str]]) -> str:
    """The command that mends a package; what is installed goes first: other distributions write into its folder."""
    requirement, torch = package.requirement, versions["torch"].get("torch", "")
    if package.module == "torchvision" and torch.startswith("2."):
        # It has to be of the release of torch: 0.21 with 2.6, 0.26 with 2.11, always 15 apart.
        requirement = f"torchvision==0.{_release(torch)[1] + 15}.*"
    uninstall = f"pip uninstall -y {' '.join(versions[package.module])} && " if versions[package.module] else ""
    return f'{uninstall}pip install "{requirement}"'


def _release(version: str) -> tuple[int, ...]:
    """Numbers of a version: 2.11.0+cu128 -> (2, 11, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def _try_torchvision() -> None:
    """Run an op on every kind of device: a torchvision of another build imports, and fails on first use."""
    import torch
    from torchvision.ops import nms

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]], device=device), torch.ones(1, device=device), 0.5)


def _devices() -> list[str]:
    import torch

    gpus = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    names = [f"cuda:{i} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for i, gpu in enumerate(gpus)]
    return [f"CPU, {torch.get_num_threads()} threads", *names]


if __name__ == "__main__":
    sys.exit(main())
