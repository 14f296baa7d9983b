"""Find, download and read checkpoints: local files, URLs, hubs, and names of the model table."""

import argparse
import errno
import hashlib
import http.client
import logging
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.hub import download_url_to_file
from torch.overrides import TorchFunctionMode

from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.checkpoint.formats import one_line, place, read_file
from vitdense.checkpoint.schemes import NAMING
from vitdense.errors import OptionError
from vitdense.families import find_model, near_names, row_of, ungated_twin
from vitdense.files import check_space, describe_missing, sha256_of

logger = logging.getLogger(__name__)

# Hosts that no longer exist, and mirrors with the same paths. OpenMMLab's host expired in 2026.
MIRRORS = {"download.openmmlab.com": "mmassets.onedl.ai"}
PATIENCE = 10  # seconds until a host that does not answer is out of reach
ADDRESSES = ("https://", "http://", "hf://owner/repo/file", "timm://model", "torchvision://model")


class LogHistory:
    """Replaces mmengine's log buffers in a checkpoint. Their content is not kept, because weights do not need it."""

    def __setstate__(self, state: dict) -> None:
        pass


def run_globals(history: type = LogHistory) -> tuple:
    """Classes that trainers save besides tensors and numbers, for `torch.serialization.safe_globals`.

    `history` replaces the class of mmengine's log buffers.
    """

    def statistic(owner: type, name: str) -> Any:
        """Replaces `getattr`, by which mmengine's log buffers refer to their methods; any other use is refused."""
        if owner is not history:
            raise pickle.UnpicklingError(f"the checkpoint asks for getattr({owner!r}, {name!r}), which is code")
        return getattr(owner, name, None)

    log_buffer = (history, "mmengine.logging.history_buffer.HistoryBuffer")
    return log_buffer, (statistic, "builtins.getattr"), argparse.Namespace  # the last is in RF-DETR's files


def read(
    checkpoint: str | Path,
    allow: Sequence | None = None,
    sha256: str | None = None,
    allow_pickle: bool = False,
    map_location: Any = "cpu",
) -> dict:
    """Read a checkpoint, without running code from it unless `allow_pickle`.

    Args:
        checkpoint: Path of a torch file, a ``.safetensors`` file, or a plain pickle of numpy arrays (detectron2's
            ``.pkl``); an address, see `ADDRESSES`; or a name of the table of models. ``hf://owner/repo@revision/file``
            takes a branch, tag or commit, ``torchvision://model.weights`` the name of certain weights. Downloads are
            cached by address. A digest in the name of a downloaded file is checked.
        allow: Classes that a torch file may have besides tensors, numbers and numpy arrays, see
            `torch.serialization.safe_globals`; None for `run_globals`, which drops the log history.
        sha256: SHA-256 digest of the file, or its first 8 or more hex digits.
        allow_pickle: Run the code that a pickle asks for. Only for files whose author you trust.
        map_location: See `torch.load`; other kinds of files take only a device. With ``'meta'`` torch does not read the
            values of tensors.

    Returns:
        Content of the file, arrays as tensors. For timm's models ``state_dict``, and ``timm_model``, the model on the
            meta device; see `parts_in_timm`.

    Raises:
        CheckpointNotFoundError: There is no such file, model or name, or it cannot be reached.
        CheckpointMismatchError: The file is not a checkpoint, is damaged, has another digest, or would run code.
        ValueError: `sha256` is not a digest.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", sha256):
        raise OptionError(f"sha256: got {sha256!r}, expected 8 to 64 hex digits, the start of what `sha256sum` prints")
    name = str(checkpoint)
    row = None if "://" in name or Path(name).expanduser().is_file() else find_model(name)
    if row is not None:
        if row.weights is None:
            raise CheckpointNotFoundError(f"checkpoint {name}: this model has no published weights; give a file")
        name, sha256 = row.weights, sha256 or row.sha256
    load = partial(read_file, allow=run_globals() if allow is None else allow, allow_pickle=allow_pickle)
    if not name.startswith("timm://"):
        return fetch(name, sha256, partial(load, map_location=map_location))
    model = name.removeprefix("timm://")
    state, built = renamed_by_timm(model, fetch(timm_address(model), sha256, load))
    return {"state_dict": place(state, map_location), "timm_model": built}


def parts_in_timm(checkpoint: Mapping, family: str) -> dict[str, Any]:
    """`Family.parts_in_timm` for a result of `read`; empty for checkpoints that are not timm's."""
    find = NAMING[family].parts_in_timm
    return find(checkpoint["timm_model"]) if find and "timm_model" in checkpoint else {}


def fetch(checkpoint: str, sha256: str | None, load: Callable[[Path], dict]) -> dict:
    """Content of the file at a path or address, by `load`. For other arguments and errors see `read`."""
    scheme = checkpoint.partition("://")[0] if "://" in checkpoint else ""
    if scheme in ("http", "https", "torchvision"):
        return download(_torchvision_url(checkpoint) if scheme == "torchvision" else checkpoint, sha256, load)
    if scheme not in ("", "hf"):
        raise CheckpointNotFoundError(
            f"checkpoint {checkpoint}: got {scheme}://, expected one of {', '.join(ADDRESSES)}"
        )
    path = hub_file(checkpoint) if scheme else _local_file(checkpoint)
    _check_digest(path, sha256)
    return load(path)


def download(address: str, sha256: str | None, load: Callable[[Path], dict]) -> dict:
    """Content of the file at a web address. It is kept in torch's cache if its digest is right and it can be read."""
    parts = urlsplit(address)
    source = parts._replace(netloc=MIRRORS.get(parts.netloc, parts.netloc)).geturl()
    name = Path(unquote(parts.path)).name or "checkpoint"
    sha256 = sha256 or digest_in_name(name)
    if parts.scheme == "http" and not sha256 and parts.hostname not in ("localhost", "127.0.0.1", *MIRRORS):
        raise CheckpointNotFoundError(
            f"checkpoint {address}: got http:// without a digest, so that anyone on the way can change the file; use "
            f"https://, or give sha256"
        )
    # The folder depends on the whole URL: many files are called model.pth.
    path = Path(torch.hub.get_dir(), "checkpoints", hashlib.sha256(source.encode()).hexdigest()[:16], name)
    if path.is_file():
        _check_digest(path, sha256)
        return load(path)
    if source != address:
        logger.warning("the host of %s is gone: downloading %s instead", address, source)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # one process of a node downloads; the others wait for its file
            if not path.is_file():
                check_space(path.parent, _size_of(source))
                download_url_to_file(source, str(path), progress=sys.stderr.isatty())
    except (OSError, http.client.HTTPException) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {source} cannot be downloaded to {path} ({type(error).__name__}: {error}); "
            f"{_advice(error, source)}check the network, or give the path of the file"
        ) from error
    try:
        _check_digest(path, sha256)
        return load(path)
    except CheckpointMismatchError as error:
        path.unlink(missing_ok=True)
        raise CheckpointMismatchError(f"the download of {source} is not kept: {error}") from error


def _size_of(address: str) -> int:
    """Bytes of the file at a web address, 0 if its host does not say; an OSError if it does not answer."""
    try:
        with urlopen(Request(address, method="HEAD", headers={"User-Agent": "torch.hub"}), timeout=PATIENCE) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except HTTPError:  # the download says what is wrong
        return 0


def digest_in_name(name: str) -> str | None:
    """The start of the SHA-256 digest in a file name of torch hub or OpenMMLab (``swin_t-704ceda3.pth``), or None."""
    match = re.search(r"-(?=\d*[a-f])([0-9a-f]{8,64})\.[^-]+$", name)  # digits alone may be a date
    return match[1] if match else None


def _check_digest(path: Path, expected: str | None) -> None:
    if expected and not (got := sha256_of(path)).startswith(expected.lower()):
        raise CheckpointMismatchError(
            f"the SHA-256 digest of {path} begins with {got[: len(expected)]}, expected {expected.lower()}; "
            f"download the file again, or correct sha256"
        )


def _local_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    near = near_names(name)
    hint = f" (did you mean {', '.join(near)}?)" if near else ""
    raise CheckpointNotFoundError(
        f"checkpoint {path} is neither a file nor a name of vitdense.list_models(){hint}: {describe_missing(path)}; "
        f"give a path, a name or an address ({', '.join(ADDRESSES)})"
    )


def hub_file(address: str) -> Path:
    """The file at an address of the Hugging Face hub, in its cache; a CheckpointNotFoundError without it."""
    match = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", address)
    if not match:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: expected hf://owner/repo/path/in/repo or hf://owner/repo@revision/path/in/repo"
        )
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HFValidationError, HTTPError

    repo, revision, name = match.groups()
    try:
        cached = try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        # Without a network, hf_hub_download would retry for half a minute, even for cached files.
        found = get_hf_file_metadata(hf_hub_url(repo, name, revision=revision), timeout=PATIENCE)
        check_space(Path(HF_HUB_CACHE), found.size or 0)
        return Path(hf_hub_download(repo, name, revision=revision))
    except (OSError, HTTPError, HFValidationError) as error:  # HTTPError of the hub's HTTP library
        cause = error.__cause__ or error
        raise CheckpointNotFoundError(
            f"checkpoint {address} cannot be downloaded from the Hugging Face hub ({type(error).__name__}: "
            f"{one_line(cause)}); {_advice(cause, address)}check the name, the network and HF_HUB_OFFLINE, "
            f"HF_ENDPOINT and HF_TOKEN, or give the path of a file, from "
            f"https://huggingface.co/{repo}/resolve/{revision or 'main'}/{name}"
        ) from error


def _advice(error: BaseException, address: str) -> str:
    """What to do on a full disk and without a network. After HTTP 401 or 403: where to ask for the file, how to give a
    token, and an alternative."""
    if getattr(error, "errno", None) == errno.ENOSPC:
        return "free some, or name a folder on another disk by TORCH_HOME, for the hub HF_HOME; "
    status = getattr(error, "code", getattr(getattr(error, "response", None), "status_code", None))
    if status is None and not isinstance(error, ValueError):
        return "shapes_nano, a small trained detector, needs no network; "
    if status not in (401, 403):
        return ""
    row, hub = row_of(address), re.match(r"(?:hf://|https://huggingface\.co/)([^/@]+/[^/@]+)", address)
    pages = ([f"https://huggingface.co/{hub[1]}"] if hub else []) + ([row.gate] if row and row.gate else [])
    advice = f"HTTP {status}: the file needs the consent of its owner, or does not exist; "
    if pages:
        advice += f"ask for access on {' or '.join(pages)}; "
    if hub:
        advice += f"give your token by `hf auth login` or HF_TOKEN, and the address as hf://{hub[1]}/...; "
    if twin := row and row.gate and ungated_twin(row):
        advice += f"or take {twin.name}, which has the same architecture and no gate; "
    return advice


def timm_address(model: str) -> str:
    import timm

    source = timm.get_pretrained_cfg(model) if timm.is_model_pretrained(model) else None
    if source is not None and source.hf_hub_id:
        return f"hf://{source.hf_hub_id}/{source.hf_hub_filename or 'model.safetensors'}"
    if source is None or not source.url:
        raise CheckpointNotFoundError(
            f"checkpoint timm://{model}: timm {timm.__version__} has no pretrained model of this name; a newer one may "
            f"have it, timm.list_models(pretrained=True) lists those of this one"
        )
    return source.url


def _torchvision_url(address: str) -> str:
    from torchvision import models

    name, _, version = address.removeprefix("torchvision://").partition(".")
    try:
        return models.get_model_weights(name)[version.upper() or "DEFAULT"].url
    except (ValueError, KeyError) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: torchvision has no such weights ({one_line(error)}); "
            f"torchvision.models.get_model_weights(model) lists them"
        ) from error


class _Given(TorchFunctionMode):
    """Records copies into meta tensors, which have no memory: target and source, by the id of the target."""

    def __init__(self) -> None:
        super().__init__()
        self.to: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.copy_ and args[0].is_meta:
            self.to[id(args[0])] = args[:2]
            return args[0]
        if func is Tensor.__deepcopy__ and not args[0].is_meta:
            return args[0]  # timm deep-copies the config with the file
        return func(*args, **(kwargs or {}))


def renamed_by_timm(model: str, state: dict[str, Any]) -> tuple[dict[str, Tensor], nn.Module]:
    """The weights with the names of the installed timm, and timm's model on the meta device.

    Files of older models have older names, and timm renames only while it builds the model. Tensors that timm adds to
    an old file, such as the counter of a batch norm, are left out: they are meta tensors.
    """
    import timm

    try:
        with warnings.catch_warnings(), torch.device("meta"), _Given() as given:
            warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
            overlay = {"state_dict": state}
            built = timm.create_model(model, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointMismatchError(
            f"the file of timm://{model} does not fit that model in timm {timm.__version__} "
            f"({' '.join(str(error).split())}); update timm, or remove the file from the hub's cache"
        ) from error
    found = {name: given.to.get(id(t), (t, t))[1] for name, t in built.state_dict(keep_vars=True).items()}
    return {name: t for name, t in found.items() if not t.is_meta}, built
