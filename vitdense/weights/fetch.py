"""The file behind a path, an address, a hub's name or a short name: found or fetched, and its digest checked."""

import difflib
import hashlib
import http.client
import logging
import os
import re
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

from vitdense.files import atomic_write
from vitdense.weights.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.weights.formats import one_line, refuse_web_page
from vitdense.weights.sources import NAMED

logger = logging.getLogger(__name__)

# Hosts that are gone, and who serves their files under the same paths. OpenMMLab's expired in 2026.
MIRRORS = {"download.openmmlab.com": "mmassets.onedl.ai"}
SCHEMES = ("https://", "http://", "hf://owner/repo/file", "timm://model", "torchvision://model")
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors", ".pkl", ".npz")
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20  # bytes


def find(checkpoint: str, sha256: str | None = None) -> Path:
    """The file of a path or address, fetched if need be, its digest checked.

    Raises:
        CheckpointNotFoundError: It is not there, or cannot be reached.
        CheckpointMismatchError: It has another digest, or is a web page.
    """
    scheme = checkpoint.partition("://")[0] if "://" in checkpoint else ""
    if scheme == "torchvision":
        return download(_torchvision_address(checkpoint), sha256)
    if scheme in ("http", "https"):
        return download(checkpoint, sha256)
    if scheme == "hf":
        path = _hub_file(checkpoint)
    elif scheme:
        raise CheckpointNotFoundError(f"checkpoint {checkpoint}: got {scheme}://, expected one of {', '.join(SCHEMES)}")
    else:
        path = _local_file(checkpoint)
    if sha256 is not None:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
        _check_digest(digest.hexdigest(), sha256, str(path), "download it again, or correct sha256")
    return path


def download(address: str, sha256: str | None = None) -> Path:
    """Fetch a file into torch's cache of checkpoints, unless it is there, and return where it is.

    Raises:
        CheckpointNotFoundError: The address cannot be reached.
        CheckpointMismatchError: The file has another digest than `sha256` or its own name say, or is a web page.
            Nothing is kept then.
    """
    asked, address = address, _mirrored(address)
    name = Path(unquote(urlsplit(address).path)).name or "checkpoint"
    # By the whole address: model.pth is a name that many files have.
    folder = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(torch.hub.get_dir()) / "checkpoints" / folder / name
    if path.is_file():
        return find(str(path), sha256)
    if address != asked:
        logger.warning("the host of %s is gone: fetching %s instead", asked, address)
    try:
        # Whoever ends first of several processes puts the file there, the others replace it by the same.
        with atomic_write(path) as scratch:
            digest = _fetch(address, scratch)
            _check_digest(digest, sha256, address, "correct sha256, or ask who publishes the file")
            mend = "its name says so; fetch it again, or if you trust it as it is, download it and give its path"
            _check_digest(digest, digest_in_name(name), address, mend)
            with scratch.open("rb") as file:
                refuse_web_page(file.read(512), address)
    except (OSError, http.client.HTTPException) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {address} cannot be fetched to {path} ({type(error).__name__}: {error}); download it where "
            f"there is a network and give its path, or train from scratch with "
            f"--cfg-options model.backbone.init_cfg=None"
        ) from error
    return path


def digest_in_name(name: str) -> str | None:
    """The start of the SHA-256 digest that a file name ends in, as torch hub's and OpenMMLab's do, or None."""
    match = re.search(r"-([0-9a-f]{8,64})\.[^-]+$", name)
    if not match or re.fullmatch(r"20\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", match[1]):  # none, or a date
        return None
    return match[1]


def _check_digest(got: str, expected: str | None, what: str, mend: str) -> None:
    if expected is not None and not got.startswith(expected.lower()):
        raise CheckpointMismatchError(
            f"{what} is not the file it should be: its SHA-256 digest begins with {got[: len(expected)]}, expected "
            f"{expected.lower()}; {mend}"
        )


def _mirrored(address: str) -> str:
    """`address`, at the mirror if its host is gone."""
    parts = urlsplit(address)
    return parts._replace(netloc=MIRRORS[parts.netloc]).geturl() if parts.netloc in MIRRORS else address


def _fetch(address: str, path: Path) -> str:
    """Write what an address serves to `path` and return its SHA-256 digest."""
    from tqdm import tqdm

    digest = hashlib.sha256()
    request = urllib.request.Request(address, headers={"User-Agent": "vitdense"})  # some hosts refuse Python's
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, path.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        # disable=None: a bar on a terminal only
        with tqdm(total=total, unit="B", unit_scale=True, desc=path.name, disable=None) as bar:
            while block := response.read(CHUNK):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if total is not None and file.tell() != total:
            raise ConnectionError(f"the connection ended after {file.tell()} of {total} bytes")
    return digest.hexdigest()


def _local_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        if not os.access(path, os.R_OK):
            raise CheckpointNotFoundError(f"checkpoint {path} may not be read by this user; give it the right to")
        return path
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix in SUFFIXES)
        hint = f"it holds {', '.join(inside[:10])}: give the path of one" if inside else "give the path of a file"
        raise CheckpointNotFoundError(f"checkpoint {path} is a folder, not a file; {hint}")
    near = difflib.get_close_matches(name, NAMED, n=5)
    hint = f"; did you mean the named weights {', '.join(near)}?" if near else ""
    raise CheckpointNotFoundError(
        f"checkpoint {path} is not a file, and no name of vitdense.weights.sources.NAMED{hint or ';'} put it there, "
        f"give another path or an address ({', '.join(SCHEMES)}), or set init_cfg=None"
    )


def _hub_file(address: str) -> Path:
    match = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", address)
    if not match:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: expected hf://owner/repo/path/in/repo or hf://owner/repo@revision/path/in/repo"
        )
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, HTTPError

    repo, revision, name = match.groups()
    # HTTPError is the base class of whatever HTTP library the installed version uses.
    try:
        # Without a network, the hub's own look at its cache comes after half a minute of retries.
        cached = try_to_load_from_cache(repo, name, revision=revision)
        return Path(cached if isinstance(cached, str) else hf_hub_download(repo, name, revision=revision))
    except (OSError, HTTPError, EntryNotFoundError, HFValidationError) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {address} cannot be fetched from the Hugging Face hub ({type(error).__name__}: "
            f"{one_line(error.__cause__ or error)}); check the name and the network (and the variables HF_HUB_OFFLINE, "
            f"HF_ENDPOINT, HF_TOKEN), or download the file where there is a network and give its path"
        ) from error


def timm_address(model: str) -> str:
    """Where timm has the pretrained weights of a model."""
    import timm

    source = timm.get_pretrained_cfg(model) if timm.is_model_pretrained(model) else None
    if source is None or not (source.hf_hub_id or source.url):
        near = difflib.get_close_matches(model, timm.list_models(pretrained=True), n=5, cutoff=0.4)
        raise CheckpointNotFoundError(
            f"checkpoint timm://{model}: timm {timm.__version__} has no pretrained model of this name; did you mean "
            f"{', '.join(near) or 'one of timm.list_models(pretrained=True)'}?"
        )
    if not source.hf_hub_id:
        return source.url
    return f"hf://{source.hf_hub_id}/{source.hf_hub_filename or 'model.safetensors'}"


def _torchvision_address(address: str) -> str:
    from torchvision import models

    name, _, version = address.removeprefix("torchvision://").partition(".")
    if name not in models.list_models():
        near = difflib.get_close_matches(name, models.list_models(), n=5)
        raise CheckpointNotFoundError(
            f"checkpoint {address}: torchvision has no model {name!r}"
            + (f"; did you mean {', '.join(near)}?" if near else "; torchvision.models.list_models() lists them")
        )
    weights = models.get_model_weights(name).__members__  # DEFAULT among them, where there are any
    version = version.upper() or "DEFAULT"
    if version not in weights:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: torchvision's {name} has weights {', '.join(weights) or '(none)'}; got {version}"
        )
    return weights[version].url
