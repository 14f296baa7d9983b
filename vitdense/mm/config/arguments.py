"""The command line of the tools: options that contradict each other are refused, values of ``--cfg-options`` parsed."""

import argparse
import ast
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from vitdense.files import read_text
from vitdense.mm.config.base import Asked, flat, whole_number
from vitdense.seams import call

BRACKETS = {"(": ")", "[": "]", "{": "}"}
WORDS = {"true": True, "false": False}  # as mmengine reads them; True, False and None are Python's


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and that knows which options contradict each other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rules: list[Callable[[set[str], Collection[str]], str | None]] = []  # of options and keys that are given

    def apart(self, option: str, *others: str) -> None:
        """Refuse `option` together with any of `others`."""
        for other in others:
            text = f"{option}: got {other} too; give one of the two"
            self.rules.append(lambda given, keys, pair={option, other}, text=text: text if pair <= given else None)

    def need(self, option: str, other: str) -> None:
        """Refuse `option` without `other`."""
        text = f"{option}: does nothing without {other}; give both, or none"
        self.rules.append(lambda given, keys: text if option in given and other not in given else None)

    def sets(self, option: str, *names: str) -> None:
        """Refuse `option` together with a ``--cfg-options`` of these dotted keys."""

        def rule(given: set[str], keys: Collection[str]) -> str | None:
            same = [key for key in keys if any(f"{name}.".startswith(f"{key}.") for name in names)]
            return (
                f"{option}: got --cfg-options {same[0]} too; give one of the two" if option in given and same else None
            )

        self.rules.append(rule)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        """As argparse's, with the rules."""
        parsed = super().parse_args(args, namespace)
        given = {
            action.option_strings[-1]
            for action in self._actions
            if action.option_strings and getattr(parsed, action.dest, action.default) != action.default
        }
        keys = flat(getattr(parsed, "cfg_options", {}))
        for rule in self.rules:
            if text := rule(given, keys):
                self.error(text)
        return parsed

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"error: {message}; {self.prog} --help lists the options\n")


class CfgOptions(argparse.Action):
    """``--cfg-options KEY=VALUE ...``, given once or several times, each key once; see `parse_value`."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
        """Add the options to those before."""
        found = dict(getattr(namespace, self.dest))
        for text in values:
            key, is_pair, value = text.partition("=")
            key = key.strip()
            if not is_pair or not key:
                parser.error(f"{option}: got {text!r}, expected KEY=VALUE; quote a value that has spaces: 'key=[a, b]'")
            if key in found:
                parser.error(f"{option} {key}: got it twice, {found[key]!r} and {value!r}; give one of the two")
            try:
                found[key] = parse_value(value)
            except ValueError as error:
                parser.error(f"{option} {key}: got {value!r}, {error}; quote it: '{key}=[dict(type=\"EMAHook\")]'")
        setattr(namespace, self.dest, found)


def parse_value(text: str) -> Any:
    """A value of ``--cfg-options``: Python's literals and ``dict(key=value)``, nested; other words are text.

    ``a,b`` is a list as ``[a,b]``. Quotes around a word may be left out: ``[coco/bbox_mAP,coco/segm_mAP]``.

    Raises:
        ValueError: Brackets or quotes do not match, or an entry of a dict has no key.
    """
    text = text.strip()
    try:
        node = ast.parse(text, mode="eval").body if text else None
    except (SyntaxError, ValueError):  # such as a path, a pattern, or a list of them
        node = None
    if node is not None:
        value = _from_node(node, text)
        return list(value) if isinstance(node, ast.Tuple) and not _is_bracketed(text) else value
    if _is_bracketed(text):
        parts = [parse_value(part) for part in _split(text[1:-1])]
        if text[0] == "{":
            raise ValueError("expected {'key': value}")
        return tuple(parts) if text[0] == "(" else parts
    if text[:1] in BRACKETS or text.startswith("dict("):
        raise ValueError("expected brackets that match, and quotes around text in dict(...)")
    parts = _split(text) if "," in text else [text]
    return [parse_value(part) for part in parts] if len(parts) > 1 else _word(text)


def _is_bracketed(text: str) -> bool:
    """Whether a text is one pair of brackets with its content."""
    return text[:1] in BRACKETS and text.endswith(BRACKETS[text[0]]) and len(_split(f"{text},")) == 1


def _word(text: str) -> Any:
    try:
        return int(text)  # 007
    except ValueError:
        pass
    try:
        return float(text)  # inf
    except ValueError:
        return WORDS.get(text.lower(), text)


def _split(text: str) -> list[str]:
    """The parts between the commas that are in no brackets and no quotes.

    Raises:
        ValueError: A bracket or quote is left open.
    """
    parts, open_, quote = [""], [], ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and not parts[-1].strip(" ([{,:="):  # an apostrophe within a word is none
            quote = letter
        elif letter in BRACKETS:
            open_.append(BRACKETS[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        if letter == "," and not open_ and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if open_ or quote:
        raise ValueError(f"expected a closing {quote or open_[-1]}")
    return [part.strip() for part in parts if part.strip()]


def _from_node(node: ast.expr, text: str) -> Any:
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [_from_node(part, text) for part in node.elts]
        return parts if isinstance(node, ast.List) else tuple(parts)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("expected {'key': value}")
        return {_from_node(key, text): _from_node(value, text) for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        if node.args or any(word.arg is None for word in node.keywords):
            raise ValueError("expected dict(key=value)")
        return {word.arg: _from_node(word.value, text) for word in node.keywords}
    try:
        value = ast.literal_eval(node)
    except ValueError:  # a word
        return _word(ast.get_source_segment(text, node))
    return value if value is None or isinstance(value, (bool, int, float, str)) else ast.get_source_segment(text, node)


def make_parser(description: str, prog: str | None = None) -> Parser:
    """A parser with the arguments of all tools, named as in mmdet and mmseg: the config and its overrides."""
    parser = Parser(prog, description=description)
    parser.add_argument("config", help="config file")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=CfgOptions,
        default={},
        metavar="KEY=VALUE",
        help="override the config, e.g. data_root=/data/coco train_dataloader.batch_size=4 key='[a,b]'; a hook: "
        "default_hooks.ema.type=EMAHook",
    )
    return parser


def add_run_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of ``train`` or ``test``: output folder, launcher, those of `Asked`, and of extensions."""
    parser.add_argument("--work-dir", help="output folder; default work_dirs/<name of the config>")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
    # `python -m torch.distributed.launch` passes it; mmengine reads the environment variable.
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    Asked.add_options(command, parser)
    call(command, "add_options", parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint, which a work folder or a published model in the place of the config makes unnecessary."""
    parser.add_argument(
        "checkpoint",
        nargs="?",
        help="checkpoint file, or work folder (its latest checkpoint); none after a work folder, or the name of a "
        "published model, as CONFIG",
    )


def add_classes(parser: argparse.ArgumentParser) -> None:
    """Add the names of the outputs of a checkpoint that has none."""
    parser.add_argument(
        "--classes",
        type=_names,
        metavar="A,B,C",
        help="names by output, for a checkpoint of another project that has none: a,b,c (of an output of no class it "
        "is empty), or a file with a name per line",
    )


def add_joined(parser: Parser) -> None:
    """Add further models, on the trunk of the first."""
    parser.add_argument(
        "--joined",
        nargs="*",
        metavar="MODEL",
        help="work folders or published models on the same trunk, which then runs once; see docs/results.md",
    )
    for other in ("--cfg-options", "--classes"):
        parser.apart("--joined", other)


def name_of(models: Sequence[str]) -> str:
    """The name of the output of one model, or of several on one trunk."""
    return "+".join(Path(model).stem for model in models)


def _names(given: str) -> list[str]:
    names = read_text(given).splitlines() if os.path.isfile(given) else given.split(",")
    return [name.strip() for name in names]


def add_inference_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of tools that run a trained model on images: the checkpoint, its classes and the device."""
    add_checkpoint(parser)
    add_classes(parser)
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, or an accelerator that torch finds: cuda, cuda:N, mps, xpu; default: cuda where there is one",
    )


def add_tiles(parser: Parser) -> None:
    """Add the arguments of detection in tiles."""
    parser.add_argument(
        "--tiles",
        type=whole_number,
        metavar="SIDE",
        help="detectors: predict in tiles of this side in pixels of the image, and merge",
    )
    parser.add_argument("--overlap", type=float, default=0.2, help="of tiles, as a share of their side; default 0.2")
    parser.need("--overlap", "--tiles")
