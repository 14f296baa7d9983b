"""The command line of the tools: refuses options that contradict each other, parses values of ``--cfg-options``."""

import argparse
import ast
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from vitdense.files import read_text
from vitdense.mm.config.asked import AMP, Asked, whole_number
from vitdense.seams import call


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and that knows which options contradict each other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rules: list[tuple[str, Callable[[set[str], Collection[str]], str | None]]] = []  # of options, keys given

    def apart(self, option: str, *others: str) -> None:
        """Refuse `option` together with any of `others`."""
        for other in others:
            text = f"got {other} too; give one of the two"
            self.rules.append((option, lambda given, keys, other=other, text=text: text if other in given else None))

    def need(self, option: str, other: str) -> None:
        """Refuse `option` without `other`."""
        text = f"does nothing without {other}; give both, or none"
        self.rules.append((option, lambda given, keys: None if other in given else text))

    def sets(self, option: str, *names: str) -> None:
        """Refuse `option` together with a ``--cfg-options`` of these dotted keys."""

        def fault(given: set[str], keys: Collection[str]) -> str | None:
            same = [key for key in keys if any(f"{name}.".startswith(f"{key}.") for name in names)]
            return f"got --cfg-options {same[0]} too; give one of the two" if same else None

        self.rules.append((option, fault))

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse, and apply the rules. They ask whether an option is given, even with its default value."""
        options = [x for x in self._actions if x.option_strings and x.default is not argparse.SUPPRESS]
        options = {action.dest: action for action in options if type(action) is not CfgOptions}
        given, keys, absent = set(), {}, object()
        parsed = super().parse_args(args, argparse.Namespace(**dict.fromkeys(options, absent)))
        for name, action in options.items():
            if getattr(parsed, name) is absent:
                setattr(parsed, name, action.default)
            else:
                given.add(action.option_strings[-1])
        if getattr(parsed, "cfg_options", None):
            given.add("--cfg-options")
            from vitdense.mm.config.base import flat  # it imports mm: after the arguments are parsed

            keys = flat(parsed.cfg_options)
        for option, fault in self.rules:
            if option in given and (text := fault(given, keys)):
                self.error(f"{option}: {text}")
        return parsed

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help lists the options"
        option, is_short, near = message.removeprefix("ambiguous option: ").partition(" could match ")
        message = f"unrecognized option {option}, did you mean {near}?" if is_short else message
        if message.startswith("unrecognized") and any(type(action) is CfgOptions for action in self._actions):
            hint += ", --cfg-options sets all else, such as optim_wrapper.optimizer.weight_decay=0.1"
        self.exit(2, f"error: {message}; {hint}\n")


class CfgOptions(argparse.Action):
    """``--cfg-options KEY=VALUE ...``, given once or several times, each key once; see `parse_value`."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
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
    """A value of ``--cfg-options``: a literal of Python, see `literal`; else as mmengine reads it.

    Brackets that do not match, or a dict that is not a literal, are a ValueError.
    """
    text = text.strip()
    with suppress(SyntaxError, TypeError, ValueError):
        *values, end = literal(ast.parse(f"[{text}, 'end']", mode="eval").body)
        if end == "end":  # the text is no comment
            return values[0] if len(values) == 1 else values
    if text.startswith(("{", "dict(")):
        raise ValueError("expected a dict of Python, with quotes around text")
    if text.startswith("[") or "," in text:
        return _read_list(text)
    for kind in (int, float):  # 007, inf
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text.strip("'\""))


def literal(node: ast.expr, leaf: Callable[[ast.expr], Any] = ast.literal_eval) -> Any:
    """The value of a Python literal, which may contain ``dict(key=value)``, else a ValueError or a TypeError.

    `leaf` reads nodes without parts.
    """
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        given = [literal(part, leaf) for part in node.args]  # dict({"a b": 1}), for keys that are not identifiers
        return dict(*given, **{word.arg: literal(word.value, leaf) for word in node.keywords})
    if isinstance(node, ast.Dict):
        return {literal(key, leaf): literal(value, leaf) for key, value in zip(node.keys, node.values)}
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [literal(part, leaf) for part in node.elts]
        return parts if isinstance(node, ast.List) else tuple(parts)
    return leaf(node)


def _read_list(text: str) -> Any:
    from mmengine.config import DictAction  # it imports torch

    read = argparse.Namespace()
    try:
        DictAction([], "options")(None, read, [f"key={text}"])
    except (AssertionError, RecursionError) as error:
        raise ValueError("expected brackets that match") from error
    return read.options["key"]


def make_parser(description: str, prog: str, needs_config: bool = True) -> Parser:
    """A parser with the arguments of all tools, named as in mmdet and mmseg: the config and its overrides."""
    parser = Parser(prog, description=description)
    parser.add_argument("config", nargs=None if needs_config else "?", help="config file")
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
    """Add the options of ``train`` or ``test``: output folder, launcher, options of `Asked` and of extensions."""
    parser.add_argument("--work-dir", help="output folder; default work_dirs/<name of the config>")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
    # `python -m torch.distributed.launch` passes it; mmengine reads the environment variable.
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    Asked.add_options(command, parser)
    call(command, "add_options", parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    text = "checkpoint file, or work folder (its latest checkpoint); none after a work folder, or the name of a "
    parser.add_argument("checkpoint", nargs="?", help=f"{text}published model, as CONFIG")


def add_classes(parser: argparse.ArgumentParser) -> None:
    text = "names by output, for a checkpoint of another project that has none: a,b,c (empty for no class), "
    parser.add_argument("--classes", type=names, metavar="A,B,C", help=f"{text}or a file with a name per line")


def names(given: str) -> list[str]:
    """The names in a text a,b,c, or in a file with a name per line."""
    found = read_text(given).splitlines() if os.path.isfile(given) else given.split(",")
    return [name.strip() for name in found]


def add_inference_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint(parser)
    add_classes(parser)
    parser.add_argument(
        "--device",
        help="cpu, or an accelerator that torch finds: cuda, cuda:N, mps, xpu; default: cuda where there is one",
    )


def add_prediction(parser: Parser) -> None:
    parser.add_argument(
        "--tiles",
        type=whole_number,
        metavar="SIDE",
        help="detectors: predict in tiles of this side in pixels of the image, and merge",
    )
    parser.add_argument("--overlap", type=float, default=0.2, help="of tiles, as a share of their side; default 0.2")
    parser.need("--overlap", "--tiles")
    parser.add_argument("--amp", **AMP)
    parser.add_argument(
        "--no-onednn",
        dest="onednn",
        action="store_false",
        help="on a CPU: linear layers as torch has them, and memory returned to the system after every layer",
    )
