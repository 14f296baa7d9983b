"""Processes of one training, test or prediction: how they start, how they stop, what they compare before the first
step."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_rank, init_dist, is_distributed
from mmengine.utils.dl_utils import set_multi_processing

from vitdense.mm.errors import ConfigError

# What schedulers, `timeout`, a closed terminal and a lost connection send before they end a process.
STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)  # Windows has the first
)


class Launcher(NamedTuple):
    """The environment variables that a launcher sets for its processes."""

    numbers: tuple[str, ...]  # whole ones: the rank, the number of processes, and others
    texts: tuple[str, ...]
    command: str  # that users type to start the processes


OF_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
LAUNCHERS = {
    "pytorch": Launcher(OF_TORCHRUN, ("MASTER_ADDR",), "torchrun --nproc-per-node N -m vitdense train ..."),
    "slurm": Launcher(("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_NODELIST",), "srun vitdense train ..."),
    "mpi": Launcher(OF_MPI, ("MASTER_ADDR",), "mpirun -x MASTER_ADDR=HOST vitdense train ..."),
}


def find_launcher(given: str) -> str:
    """The launcher of this process: the given one, or ``pytorch`` if torchrun has started several processes. A variable
    of it that is missing, or more processes than GPUs, are a ConfigError."""
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
    gpus = torch.cuda.device_count()
    for variable, number in zip(launcher.numbers, map(_number, launcher.numbers)):
        if variable.endswith("LOCAL_RANK") and number >= gpus > 0:
            raise ConfigError(
                f"{variable}: got {number}, expected less than the {gpus} GPUs that this machine has or "
                f"CUDA_VISIBLE_DEVICES names; start as many processes, or set CUDA_VISIBLE_DEVICES= to train on CPUs"
            )
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
    """A handler of signals for commands that have nothing to save."""
    raise StopSignal(f"stopped by {signal.Signals(signum).name}", signum)


@contextmanager
def handling_stops(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, `handler` gets the signals `STOPS` of this process; children that are forked inside end by them. One that
    is ignored, as under nohup, stays ignored. Only the main thread can handle signals; in another nothing changes."""
    owner = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() == owner:
            handler(number, frame)
        else:  # such as the pool of a metric, which ends its workers by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOPS if is_main}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def start_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Begin a data worker, then call `then`, the `worker_init_fn` of the loader. It ends by SIGTERM of its parent
    alone: after a signal to all processes the main one may load images before it stops, and a worker that ended first
    would look as if the system had killed it for memory."""
    for number in STOPS[1:]:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), daemon=True).start()
    if then is not None:
        then(worker)


def _obey(parent: int) -> None:
    """End by SIGTERM of the parent, or after it: a worker that waits for room in a pipe would outlive a killed one."""
    while os.getppid() == parent:
        asked = signal.sigtimedwait({signal.SIGTERM}, 5)  # seconds, as torch looks for the parent
        if asked is not None and asked.si_pid == parent:
            break
    os._exit(0)


def connect(launcher: str, env: Mapping[str, Any]) -> None:
    """Connect the processes of a run by `find_launcher` and ``env_cfg`` of the config, on GPUs as mmengine's runner
    would: only then one of them is the main process. Without a GPU, another launcher than torchrun is a ConfigError."""
    if launcher == "none" or is_distributed():
        return
    if get_device() != "cpu":
        set_multi_processing(**env.get("mp_cfg", {}), distributed=True)
        init_dist(launcher, **env.get("dist_cfg", {}))
    elif launcher != "pytorch":
        raise ConfigError(f"--launcher {launcher}: needs GPUs, and torch finds none; on CPUs, use torchrun")
    else:
        torch.distributed.init_process_group("gloo")


def start_processes() -> None:
    """Connect the processes of torchrun that share the images of a prediction; they exchange results only."""
    if find_launcher("none") != "none" and not is_distributed():
        torch.distributed.init_process_group("gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def agree(facts: Mapping[str, str]) -> None:
    """Raise a ConfigError in every process if a fact differs between them: with different checkpoints they would
    average gradients of different models."""
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
