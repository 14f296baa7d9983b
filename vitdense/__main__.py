"""`python -m vitdense`: what is installed, which ops mmcv runs on, and the command that mends what is missing."""

import importlib
import importlib.metadata
import platform
import sys
from dataclasses import dataclass
from typing import NamedTuple

import vitdense
from vitdense.ops import BUILD_COMMAND, OpsInUse, ops_in_use


class Package(NamedTuple):
    """A row of the table below: an import name, the distributions that provide it, and what it is for."""

    module: str
    distributions: tuple[str, ...]  # the one to install first, then those that work as well
    minimum: str  # of the first distribution; tests/test_main.py holds it against pyproject.toml
    required: bool  # no backbone can be built without it
    extra: bool  # installed by vitdense[mm], not by vitdense alone
    purpose: str


PACKAGES = (
    Package("torch", ("torch",), "2.6", True, False, "everything"),
    Package("torchvision", ("torchvision",), "0.21", True, False, "the stand-in for the compiled ops of mmcv"),
    Package("timm", ("timm",), "1.0.9", True, False, "building blocks, weights by name"),
    Package("safetensors", ("safetensors",), "0.4", True, False, "reading checkpoints"),
    Package("mmengine", ("onedl-mmengine", "mmengine"), "0.10.11", True, True, "registries, base classes, runner"),
    Package("mmcv", ("onedl-mmcv", "mmcv", "mmcv-lite"), "2.3.6", False, True, "ops and transforms of mmdet and mmseg"),
    Package("mmdet", ("onedl-mmdetection", "mmdet"), "3.5.1", False, True, "detection"),
    Package("mmseg", ("onedl-mmsegmentation", "mmsegmentation"), "1.4.2", False, True, "segmentation"),
    Package("pycocotools", ("pycocotools",), "2.0.7", False, True, "COCO masks and metric"),
    Package("faster_coco_eval", ("faster-coco-eval",), "1.6", False, True, "the fast COCO metric"),
)
ALL_OF_MM = 'pip install "vitdense[mm]"'


class Problem(NamedTuple):
    """Something missing or broken, and the command that mends it."""

    module: str
    what: str
    command: str
    required: bool


@dataclass(frozen=True)
class Report:
    """What `collect` found."""

    python: str
    versions: dict[str, tuple[tuple[str, str], ...]]  # module -> (distribution, version) of all that provide it
    devices: tuple[str, ...]
    ops: OpsInUse
    problems: tuple[Problem, ...]

    @property
    def ready(self) -> bool:
        """Whether a backbone can be built and run."""
        return not any(problem.required for problem in self.problems)


def collect() -> Report:
    """Look at the running environment; imports what is installed, because only that shows what is broken."""
    versions = {package.module: _installed(package) for package in PACKAGES}
    problems = [problem for package in PACKAGES for problem in _check(package, versions)]
    no_torch = any(problem.module == "torch" for problem in problems)
    return Report(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions=versions,
        devices=() if no_torch else _devices(),
        ops=ops_in_use() if versions["mmcv"] else OpsInUse("mmcv not installed"),
        problems=tuple(problems),
    )


def _installed(package: Package) -> tuple[tuple[str, str], ...]:
    found = []
    for name in package.distributions:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _check(package: Package, versions: dict[str, tuple[tuple[str, str], ...]]) -> list[Problem]:
    """At most one problem of a package, the first of: missing, doubled, too old, does not work."""
    module, found, wanted = package.module, versions[package.module], package.distributions[0]
    install = f'pip install "{wanted}>={package.minimum}"'
    if not found:
        return [Problem(module, f"{module} is not installed ({package.purpose})", install, package.required)]
    if len(found) > 1:
        names = [name for name, _ in found]
        # Both write into one folder: removing either one removes files of the other, so both have to go first.
        command = f"pip uninstall -y {' '.join(names)} && {install}"
        what = f"{module} comes from {' and '.join(names)}, which overwrite each other"
        return [Problem(module, what, command, package.required)]
    name, version = found[0]
    if name == wanted and _numbers(version) < _numbers(package.minimum):
        return [Problem(module, f"{module} {version} is older than {package.minimum}", install, package.required)]
    try:
        importlib.import_module(module)
        if module == "torchvision":
            _try_torchvision()
    except Exception as error:  # a broken package can raise anything; the report has to survive all of it
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}"
        command = f"pip install --force-reinstall --no-deps {name}"
        if name != wanted:  # upstream releases that no longer fit each other: change to the maintained distribution
            command = f"pip uninstall -y {name} && {install}"
        if module == "torchvision" and versions["torch"]:
            torch = versions["torch"][0][1]
            reason = f"{reason}; it has to be the one made for torch {torch}"
            command = f'pip install --force-reinstall --no-deps "{_torchvision_for(torch)}"'
        return [Problem(module, f"{module} {version} does not work ({reason})", command, package.required)]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: 2.11.0+cu128 -> (2, 11, 0); a suffix such as rc1 ends them."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers += [int(digits)] if digits else []
        if digits != part:
            break
    return tuple(numbers)


def _torchvision_for(torch_version: str) -> str:
    """Requirement of the torchvision released with a torch 2.x: 2.6 with 0.21, 2.11 with 0.26, always 15 apart."""
    major, minor, *_ = (*_numbers(torch_version), 0, 0)
    return f"torchvision=={major - 2}.{minor + 15}.*" if major == 2 else "torchvision"


def _try_torchvision() -> None:
    """Run an op on every kind of device: a torchvision of another build imports, and fails on first use."""
    import torch
    from torchvision.ops import nms

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]], device=device), torch.ones(1, device=device), 0.5)


def _devices() -> tuple[str, ...]:
    import torch

    gpus = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return (
        f"CPU, {torch.get_num_threads()} threads",
        *(f"cuda:{i} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for i, gpu in enumerate(gpus)),
    )


def format_report(report: Report) -> str:
    """The report as text of about 20 lines."""
    rows = [("vitdense", vitdense.__version__), ("python", report.python)]
    for package in PACKAGES:
        found = report.versions[package.module]
        names = [f"{version} ({name})" if name != package.module else version for name, version in found]
        rows.append((package.module, ", ".join(names) or "not installed"))
    rows += [("device", device) for device in report.devices]
    rows.append(("mmcv ops", f"{report.ops.kind} ({report.ops.detail})" if report.ops.detail else report.ops.kind))
    lines = [f"{name:18}{value}" for name, value in rows]
    for title, required in (("Needed", True), ("Optional", False)):
        problems = [problem for problem in report.problems if problem.required == required]
        if problems:
            lines += ["", f"{title}:"]
            lines += [line for problem in problems for line in (f"  {problem.what}", f"      {problem.command}")]
    missing = [package for package in PACKAGES if package.extra and not report.versions[package.module]]
    if len(missing) > 1:
        lines += ["", "All of mm* at once:", f"      {ALL_OF_MM}"]
    if report.ops.kind == "stand-in":
        lines += ["", "The stand-in needs no compiler. To compile the ops, with the CUDA toolkit of your torch:"]
        lines += [f"      {BUILD_COMMAND}"]
    lines += ["", "Ready." if report.ready else "Not ready: see what is needed above."]
    return "\n".join(lines)


def main() -> int:
    """Print the report; 0 if backbones can be built, 1 if something they need is missing or broken."""
    report = collect()
    print(format_report(report))
    return 0 if report.ready else 1


if __name__ == "__main__":
    sys.exit(main())
