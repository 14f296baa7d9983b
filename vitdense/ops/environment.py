"""Makes `mmcv._ext` importable in every script of the environment, so that mm's own tools need no `import vitdense`.

A ``.pth`` file in site-packages runs one line at every start of Python. Ours adds a finder that imports vitdense when
something imports `mmcv._ext`. At the start it imports no module (0.4 ms).
"""

import sysconfig
from pathlib import Path

from vitdense.errors import OptionError
from vitdense.files import atomic_write

# The name sorts after those of editable installations. Python reads the files in this order.
FILE = "vitdense_ops.pth"
# It must work with any later version of vitdense, and without one.
_SOURCE = """
import sys

class VitdenseOps:
    "Written by `python -m vitdense ops enable`; `python -m vitdense ops disable` removes it."

    def find_spec(self, name, path=None, target=None):
        if name != "mmcv._ext":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        try:
            import vitdense  # adds its own finder
        except ImportError as error:
            print(f"vitdense_ops.pth in site-packages: {error}; delete the file", file=sys.stderr)
        return importlib.util.find_spec(name)

sys.meta_path.insert(0, VitdenseOps())
"""


def ops_file() -> Path:
    """The ``.pth`` file of this environment, whether it exists or not."""
    return Path(sysconfig.get_path("purelib"), FILE)


def enable() -> Path:
    """Write the file, and return its path.

    Raises:
        ValueError: The folder is not writable.
    """
    path = ops_file()
    try:
        with atomic_write(path) as scratch:
            scratch.write_text(f"import sys; exec({_SOURCE!r}, {{}})\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"ops enable: cannot write {path} ({error}); use an environment of your own") from error
    return path


def disable() -> Path:
    """Remove the file if it exists, and return its path.

    Raises:
        ValueError: The folder is not writable.
    """
    path = ops_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"ops disable: cannot remove {path} ({error})") from error
    return path
