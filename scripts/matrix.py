"""On which versions of Python and torch the package works: an environment for each, the quick tests in it, and the
table of docs/install.md.

It needs uv (``pip install uv``), which finds the interpreters on the PATH, or fetches them. A cell takes minutes and
some 6 GB.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitdense.files import atomic_write, read_text

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs/install.md"
BEGIN, END = "<!-- scripts/matrix.py -->\n", "<!-- end -->\n"
HEAD = ["Python, by", "torch", "packages", "passed", "failed", "why"]
QUICK = "not slow and not long and not docs and not pairs and not commands"
FAULTS_SHOWN = 3
# What is added to the line that installs, for a torch that is no minor version.
TORCH = {
    "lowest": ("--resolution", "lowest-direct"),  # the lowest versions that pyproject.toml allows
    "pinned": ("-c", "constraints.txt"),
    "newest": (),
}
# What needs mm is skipped where it is not installed; these folders need it as a whole.
TORCH_FLOOR = ["layers", "models", "necks", "checkpoint", "results", "export"]
TESTERS = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "pillow", "opencv-python-headless"]


class Cell(NamedTuple):
    """One environment.

    Attributes:
        python: Version of the interpreter.
        packages: ``all``, with mm; or ``core``, torch and timm alone, and what exports.
        by: ``pip`` or ``uv``, which installs.
        torch: A minor version, such as ``2.7``, or a key of `TORCH`.
    """

    python: str
    packages: str
    by: str
    torch: str = "newest"

    @property
    def name(self) -> str:
        return f"{self.python}-{self.packages}-{self.torch}"

    @property
    def options(self) -> Sequence[str]:
        """What is added to the line that installs."""
        if self.torch in TORCH:
            return TORCH[self.torch]
        minor = int(self.torch.partition(".")[2])
        return f"torch==2.{minor}.*", f"torchvision==0.{minor + 15}.*"


CELLS = (
    Cell("3.10", "all", "uv", "lowest"),
    Cell("3.10", "all", "pip", "2.6"),
    Cell("3.10", "all", "uv", "2.7"),
    Cell("3.11", "all", "uv", "2.8"),
    Cell("3.11", "all", "uv", "2.9"),
    Cell("3.12", "all", "uv", "2.10"),
    Cell("3.11", "all", "pip", "pinned"),
    Cell("3.12", "all", "uv", "2.12"),
    Cell("3.13", "all", "uv", "2.13"),
    Cell("3.13", "all", "pip"),
    Cell("3.14", "all", "uv"),
    Cell("3.10", "core", "uv", "2.6"),
    Cell("3.13", "core", "pip"),
    Cell("3.14", "core", "uv"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [cell.name for cell in CELLS]
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep environments and logs here")
    parser.add_argument("--jobs", default="2", help="processes of the tests; default: 2")
    args = parser.parse_args()
    if unknown := {*args.cells} - {*names}:
        parser.error(f"cells: got {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
    if shutil.which("uv") is None:
        parser.error("needs uv, and finds none: pip install uv")
    for cell in CELLS:
        if not args.cells or cell.name in args.cells:
            with tempfile.TemporaryDirectory() as scratch:
                row = measure(cell, (args.keep or Path(scratch)) / cell.name, args.jobs)
            print(*row, sep=" | ", flush=True)
            write(row)


def measure(cell: Cell, folder: Path, jobs: str) -> list[str]:
    """Install and test in a folder; the row of the table."""
    folder.mkdir(parents=True)
    python = str(folder / "environment/bin/python")
    start = [f"{cell.python}, {cell.by}", cell.torch, cell.packages]
    done = run(["uv", "venv", "--quiet", "--seed", "--python", cell.python, str(folder / "environment")], folder)
    if done.returncode:
        return [*start, "", "", f"no interpreter: {last_line(done)}"]
    own = ["-e", ".[mm,test]"] if cell.packages == "all" else ["-e", ".[export]", *TESTERS]
    installer = ["uv", "pip", "install", "--python", python] if cell.by == "uv" else [python, "-m", "pip", "install"]
    done = run([*installer, *own, *cell.options], folder)
    if done.returncode:
        return [*start, "", "", f"not installed: {last_line(done)}"]
    versions = "import sys, torch; print(sys.version.split()[0], torch.__version__.partition('+')[0])"
    version, torch = run([python, "-c", versions], folder).stdout.split()
    start = [f"{version}, {cell.by}", f"{torch}, {cell.torch}" if cell.torch in TORCH else torch, cell.packages]
    tests = ["tests"] if cell.packages == "all" else [f"tests/{name}" for name in TORCH_FLOOR]
    options = ["-q", "-n", jobs, "--dist", "loadfile", "--timeout", "600", "-m", QUICK, "-p", "no:cacheprovider"]
    options += ["--basetemp", str(folder / "scratch"), "--junitxml", str(folder / "tests.xml")]
    done = run([python, "-m", "pytest", *options, *tests], folder)
    if done.returncode > 1:  # no test ran, or not all
        return [*start, "", "", f"not tested: {last_line(done)}"]
    return [*start, *counted(folder / "tests.xml")]


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess:
    """Run a command in the repository; what it printed is also in the log of the folder."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    variables.pop("PYTHONPATH", None)  # which would be found before what is installed
    done = subprocess.run(command, cwd=REPO, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    return done


def last_line(done: subprocess.CompletedProcess) -> str:
    """The error of a command, else what it said last, in the cell of a table."""
    lines = [line for line in done.stdout.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    errors = [line for line in lines if line.lower().startswith("error")]
    return in_cell((errors or lines)[-1])


def in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:160]


def counted(report: Path) -> list[str]:
    """The cells of a report of pytest: passed, failed, and the first faults."""
    cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    faults = [(case, part) for case in cases for part in case if part.tag in ("failure", "error")]
    skipped = [case for case in cases if case.find("skipped") is not None]
    lines = [f"`{case.get('name')}`: {in_cell(part.get('message') or '')}" for case, part in faults[:FAULTS_SHOWN]]
    more = [f"{len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
    passed = len(cases) - len(skipped) - len({case for case, _ in faults})
    return [str(passed), str(len(faults)), "; ".join([*lines, *more])]


def write(row: Sequence[str]) -> None:
    """Replace the row of the same cell, or add one, in the order of `CELLS`."""
    before, _, rest = read_text(PAGE).partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    found = {name_of(row): row for row in [*rows, row]}
    ordered = [found[cell.name] for cell in CELLS if cell.name in found]
    lines = [f"| {' | '.join(cells)} |" for cells in [HEAD, ["---"] * len(HEAD), *ordered]]
    with atomic_write(PAGE) as scratch:
        scratch.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def name_of(row: Sequence[str]) -> str:
    """The name of the cell of a row: ``3.13.0, pip``, ``2.14.1, newest`` and ``core`` -> ``3.13-core-newest``."""
    version, _, asked = row[1].partition(", ")
    python, torch = (".".join(one.split(".")[:2]) for one in (row[0].partition(",")[0], version))
    return f"{python}-{row[2]}-{asked or torch}"


if __name__ == "__main__":
    sys.exit(main())
