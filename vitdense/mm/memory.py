"""Memory of a machine without a GPU, as Linux states it."""

from pathlib import Path

from vitdense.files import read_text
from vitdense.mm.errors import ConfigError


def available_memory() -> int:
    """Bytes that Linux says are available, to this machine or to its container."""
    free = bytes_of("/proc/meminfo", "MemAvailable")
    limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    if limit.exists() and (text := read_text(limit).strip()) != "max":
        free = min(free, int(text) - int(read_text(used)))
    return free


def bytes_of(file: str, name: str) -> int:
    """A value of Linux, which states it in kB.

    Raises:
        ConfigError: The system is another one.
    """
    if not Path(file).exists():
        raise ConfigError("--batch-size auto: needs a GPU or Linux; give a number")
    return next(1024 * int(line.split()[1]) for line in read_text(file).splitlines() if line.startswith(name))
