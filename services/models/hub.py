"""A model folder from the model hub: JSON, safetensors and templates, never a file that runs code."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

# the HTTP client is the hub library's own choice: its errors are taken from there
from huggingface_hub.errors import HTTPError as HubHttpError  # type: ignore[attr-defined]

from proto.errors import Disconnected, InvalidSetting

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]  # copies in other formats: in subfolders, and beside them for Mistral
_ETAG_TIMEOUT_S = 10


def download_from_hub(name: str, endpoint: str | None = None) -> Path:
    """The folder of `org/name`, from the hub or its local cache; the hub draws its own progress.

    `endpoint` overrides `HF_ENDPOINT`; a token in `HF_TOKEN` opens gated models.

    Raises:
        InvalidSetting: the hub has no such model, or shows it only to others.
        Disconnected: the hub is out of reach and the cache lacks the model.
    """
    try:
        folder = snapshot_download(
            name,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            etag_timeout=_ETAG_TIMEOUT_S,
            endpoint=endpoint,
        )
    except (RepositoryNotFoundError, HFValidationError) as error:
        reason = f"the model hub has no {name!r}, or not for everybody (HF_TOKEN opens gated models)"
        raise InvalidSetting(setting="model", reason=reason) from error
    except (HubHttpError, OSError) as error:
        raise Disconnected(peer="the model hub") from error
    return Path(folder)
