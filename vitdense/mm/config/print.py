"""Configs as text: values as Python code, in files that are written once."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from vitdense.files import check_writable
from vitdense.mm.errors import ConfigError

WIDTH = 120  # of a line


class Name(str):
    """Code in a config that is not a string, such as the name of a variable."""


def check_new_file(path: Path, force: bool, suffix: str = ".py") -> None:
    """Raise if `path` does not end in `suffix`, exists without `force`, or cannot be written."""
    if path.suffix != suffix:
        raise ConfigError(f"NAME.py: got {path}, expected a name that ends with .py")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; choose another name, or give --force to overwrite it")
    check_writable(path, "NAME.py")


def docstring(first: str, rest: Sequence[str]) -> str:
    """A docstring with any text: a paragraph, and lines after it."""
    first = textwrap.fill(_escaped(first), WIDTH - 3, break_long_words=False)  # a break might be inside of an escape
    return '"""' + "\n".join([first, "", *map(_escaped, rest)]) + '\n"""'


def _escaped(text: str) -> str:
    """Text for a string in a config: JSON's escapes are Python's, and mmengine must not find {{ ... }} to replace."""
    text = json.dumps(text, ensure_ascii=False)[1:-1].replace("{{", r"{\x7b")
    return text.encode(errors="backslashreplace").decode()  # for file names that are not UTF-8


class ReadableConfig(Config):
    """A config whose text is `code`. mmengine's formatter takes most of a second, again for every checkpoint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "given", {})  # the user's --cfg-options by dotted keys

    @property
    def pretty_text(self) -> str:
        return "".join(f"{key} = {code(value, prefix=len(key) + 3)}\n" for key, value in self.to_dict().items())


def code(value: Any, indent: int = 0, prefix: int = 0) -> str:
    """A value as Python code, split into a line per part where it exceeds a line after `prefix` characters.

    The key ``""`` of a dict is an argument without a name.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, Mapping):
        is_call = all(isinstance(key, str) and (not key or key.isidentifier()) for key in value)
        start, end = ("dict(", ")") if is_call else ("{", "}")
        parts = [(code(key) + ": " if not is_call else f"{key}=" if key else "", part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        start, end = "[]" if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        parts = [("", part) for part in value]
    else:
        is_text = isinstance(value, str) and not isinstance(value, Name)
        return f'"{_escaped(value)}"' if is_text else str(value)
    line = f"{start}{', '.join(key + code(part) for key, part in parts)}{end}"
    if indent + prefix + len(line) < WIDTH and "\n" not in line:
        return line
    inner = " " * (indent + 4)
    body = "".join(f"{inner}{key}{code(part, indent + 4, len(key))},\n" for key, part in parts)
    return f"{start}\n{body}{' ' * indent}{end[-1]}"
