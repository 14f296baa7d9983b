"""What mmengine writes, whole or not there."""

from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from vitdense.files import atomic_write


class AtomicLocalBackend(LocalBackend):
    """mmengine's local files, but a file appears under its name only when it is complete.

    ``CheckpointHook(backend_args=dict(backend='vitdense.atomic'))`` then survives a kill in the middle of a save.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        with atomic_write(filepath) as scratch:
            scratch.write_bytes(obj)


register_backend("vitdense.atomic", AtomicLocalBackend)
