"""Models from the Hugging Face hub, through its own library and cache."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS
from tqdm.auto import tqdm

from tui.engine.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def is_id(name: str) -> bool:
    """Whether the name is written as the hub's are: owner/name."""
    return _ID.fullmatch(name) is not None and not name.lower().endswith(".gguf")


def fetch(name: str, progress: Callable[[int, int | None], None]) -> Path:
    """The folder of the model in the hub's cache, with what it lacks fetched.

    `progress` is told how many of how many bytes there are, and may raise to stop; it is called
    from several threads.
    Raises ModelError.
    """
    counting: list[_Bar] = []

    class Bar(_Bar):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            if self.unit == "B":
                counting.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            # Not in display(), which is called with a lock held that an exception would keep.
            if drawn and counting:
                total = max(int(bar.total or 0) for bar in counting)
                progress(max(int(bar.n) for bar in counting), total or None)
            return drawn

    try:
        folder = snapshot_download(name, allow_patterns=DEFAULT_ALLOW_PATTERNS, tqdm_class=Bar)
    except GatedRepoError:
        raise ModelError(
            f"{name} is behind a licence on Hugging Face: accept it on the model's page and "
            "log in (`hf auth login`), or name another model."
        ) from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"Hugging Face has no model {name!r}, or it is private: check the spelling, "
            "or log in (`hf auth login`)."
        ) from None
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is not on this machine, and Hugging Face cannot be reached: connect once, "
            "or give a folder or a .gguf file."
        ) from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        raise ModelError(
            f"Hugging Face answered {status} when asked for {name}: try again later."
        ) from error
    return Path(folder)


class _Bar(tqdm):
    """A progress bar that draws nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs | {"file": io.StringIO()})

    def display(self, *_: Any, **__: Any) -> None:
        pass
