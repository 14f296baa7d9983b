"""Several processes of one training, test or prediction: how they start, and that they agree before the first step."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, all_reduce, get_rank, is_distributed

from vitdense.mm.errors import ConfigError

PR_SET_PDEATHSIG = 1  # of Linux's prctl
# What schedulers, `timeout`, a closed terminal and a lost connection send before they end a process.
STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)  # Windows has the first
)


class Launcher(NamedTuple):
    """What a launcher tells its processes by environment variables, and the command that does.

    Attributes:
        numbers: The first is the number of the process, the second how many there are.
        texts: Others.
        command: As users type it.
    """

    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    command: str


LAUNCHERS = {
    "pytorch": Launcher(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"),
        ("MASTER_ADDR",),
        "torchrun --nproc-per-node N tools/train.py ...",
    ),
    "slurm": Launcher(("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_NODELIST",), "srun python tools/train.py ..."),
    "mpi": Launcher(
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("MASTER_ADDR",),
        "mpirun -x MASTER_ADDR=HOST python tools/train.py ...",
    ),
}


def find_launcher(given: str) -> str:
    """The launcher of this process: the given one, or that of torchrun, which tells how many processes it started.

    Raises:
        ConfigError: What the launcher tells its processes is missing or contradicts itself.
    """
    inferred = given == "none"
    if inferred and ("WORLD_SIZE" not in os.environ or _number("WORLD_SIZE") == 1):
        return "none"
    name = "pytorch" if inferred else given
    launcher = LAUNCHERS[name]
    if absent := [variable for variable in (*launcher.numbers, *launcher.texts) if not os.environ.get(variable)]:
        source = f"WORLD_SIZE is {os.environ['WORLD_SIZE']}" if inferred else f"--launcher {given}"
        raise ConfigError(
            f"{source}: {', '.join(absent)} is not set; start the processes by {launcher.command}"
            + ("; or unset WORLD_SIZE for one process" if inferred else "")
        )
    rank, size, *_ = map(_number, launcher.numbers)
    if rank >= size:
        raise ConfigError(f"{launcher.numbers[0]}: got {rank}, expected less than {launcher.numbers[1]}, {size}")
    return name


def _number(variable: str) -> int:
    if not (text := os.environ[variable]).isdecimal():
        raise ConfigError(f"environment variable {variable}: got {text!r}, expected a whole number")
    return int(text)


class StopSignal(BaseException):
    """The process was asked to end by `signum`. Like KeyboardInterrupt, it is no error."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def stop_at_once(signum: int, frame: Any = None) -> None:
    """A handler of signals, where nothing has to be saved."""
    raise StopSignal(f"stopped by {signal.Signals(signum).name}", signum)


@contextmanager
def handling_stops(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, `handler` gets the signals `STOPS`, but for those that who started the process has switched off (nohup).

    Other threads than the main one cannot handle signals: there, this changes nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOPS if is_main}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def end_with_parent() -> None:
    """End this process as soon as the one that started it is killed (on Linux).

    A process of torchrun would wait for the others, minutes long, and hold the work folder; a data worker would live on
    for seconds.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Begin a data worker, and go on with the function that its loader has for this.

    A signal to all processes is for the main one, which may have to load images before it stops; a worker that ended
    first would look like one that the system killed for memory. It obeys its parent alone.
    """
    end_with_parent()
    for number in STOPS[1:]:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_parent, daemon=True).start()
    if then is not None:
        then(worker)


def _obey_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def start_on_cpu(launcher: str) -> None:
    """Connect the processes over gloo where there is no GPU; mmengine, which does it otherwise, needs one.

    Raises:
        ConfigError: Another launcher than torchrun.
    """
    if launcher == "none" or is_distributed() or get_device() != "cpu":
        return
    if launcher != "pytorch":
        raise ConfigError(f"--launcher {launcher}: needs GPUs, and torch finds none; on CPUs, use torchrun")
    torch.distributed.init_process_group("gloo")


def start_processes() -> None:
    """Connect processes of torchrun that share work, and send each other results only."""
    if find_launcher("none") != "none" and not is_distributed():
        torch.distributed.init_process_group("gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def agree(facts: Mapping[str, str]) -> None:
    """Compare facts of all processes, before they train a model together.

    Without it, processes that found different checkpoints would average the gradients of different models.

    Raises:
        ConfigError: On all of them: they differ.
    """
    if not is_distributed():
        return
    found = all_gather_object(dict(facts))
    for name in facts:
        values = [each[name] for each in found]
        if len(set(values)) > 1:
            lines = "; ".join(f"process {rank}: {value}" for rank, value in enumerate(values))
            raise ConfigError(
                f"the processes do not agree on the {name}, so this one, {get_rank()}, stops before the first step: "
                f"{lines}. All need the same files: put data and work folder on a disk that they share"
            )


def mean_of_processes(losses: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The mean of every loss, which all log then: that of one process with all images. mmengine logs its own."""
    values = torch.stack([torch.as_tensor(x, dtype=torch.float32, device=get_device()) for x in losses.values()])
    all_reduce(values, "mean")
    return dict(zip(losses, values))
