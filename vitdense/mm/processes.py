"""Processes of a training, test or prediction: how they start and stop, and what they compare before the start."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_rank, init_dist, is_distributed
from mmengine.utils.dl_utils import set_multi_processing

from vitdense.mm.errors import ConfigError

# Signals from schedulers, `timeout`, a closed terminal or a lost connection.
STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)  # Windows has the first
)


OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")  # its environment variables


def find_launcher(given: str) -> str:
    """The launcher of this process: the given one, or ``pytorch`` if torchrun has started several processes.

    A missing environment variable of torchrun, or more processes than GPUs, is a ConfigError.
    """
    if given == "none" and os.environ.get("WORLD_SIZE", "1") != "1":
        given = "pytorch"
    if given != "pytorch":
        return given
    if absent := [variable for variable in OF_TORCHRUN if not os.environ.get(variable)]:
        raise ConfigError(
            f"--launcher pytorch: {', '.join(absent)} is not set; start the processes by torchrun --nproc-per-node N "
            f"-m vitdense train ..., or unset WORLD_SIZE for one process"
        )
    number, gpus = os.environ["LOCAL_RANK"], torch.cuda.device_count()
    if int(number) >= gpus > 0:
        raise ConfigError(
            f"LOCAL_RANK: got {number}, expected less than the {gpus} GPUs that this machine has or "
            f"CUDA_VISIBLE_DEVICES names; start as many processes, or set CUDA_VISIBLE_DEVICES= to train on CPUs"
        )
    return given


class StopSignal(BaseException):
    """The process was asked to end by `signum`. Like KeyboardInterrupt, it is not an Exception."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def stop_at_once(signum: int, frame: Any = None) -> None:
    raise StopSignal(f"stopped by {signal.Signals(signum).name}", signum)


@contextmanager
def handling_stops(handler: Callable[[int, Any], None], numbers: Sequence[int] = STOPS) -> Iterator[None]:
    """Inside, `handler` gets these signals of this process, and they end forked children.

    An ignored signal, as under nohup, stays ignored. Outside of the main thread nothing changes.
    """
    owner = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() == owner:
            handler(number, frame)
        else:  # a child, such as a metric's pool, whose workers are ended by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if is_main}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def start_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Start a data worker, then call `then`, the loader's `worker_init_fn`.

    Only SIGTERM from its parent ends it. After a signal to all processes the parent may load images before it stops,
    and would take a worker that ended first for one that was killed for lack of memory.
    """
    for number in (signal.SIGINT, *STOPS[1:]):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), daemon=True).start()
    if then is not None:
        then(worker)


def _obey(parent: int) -> None:
    """End after the parent's SIGTERM or death: a worker that waits for room in a pipe would outlive a killed parent."""
    while os.getppid() == parent:
        asked = signal.sigtimedwait({signal.SIGTERM}, 5)  # seconds; torch's own interval
        if asked is not None and asked.si_pid == parent:
            break
    os._exit(0)


def connect(launcher: str, env: Mapping[str, Any]) -> None:
    """Connect the processes of a run by `find_launcher` and the config's ``env_cfg``, as mmengine's runner would.

    Before that, every process takes itself for the main one. Other launchers than torchrun without a GPU, or without
    their environment variables, are a ConfigError.
    """
    if launcher == "none" or is_distributed():
        return
    if get_device() != "cpu":
        set_multi_processing(**env.get("mp_cfg", {}), distributed=True)
        try:
            init_dist(launcher, **env.get("dist_cfg", {}))
        except KeyError as error:
            raise ConfigError(f"--launcher {launcher}: {error} is not set; start the processes by torchrun") from error
    elif launcher != "pytorch":
        raise ConfigError(f"--launcher {launcher}: needs GPUs, and torch finds none; on CPUs, use torchrun")
    else:
        torch.distributed.init_process_group("gloo")


def start_processes() -> None:
    if find_launcher("none") != "none" and not is_distributed():
        torch.distributed.init_process_group("gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def agree(facts: Mapping[str, str]) -> None:
    """Raise a ConfigError in every process if a fact differs between them.

    With different checkpoints, for instance, they would average gradients of different models.
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
