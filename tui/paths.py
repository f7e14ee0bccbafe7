"""Where the program keeps its files. Folders are named here and made by who writes to them."""

import warnings
from pathlib import Path

from platformdirs import PlatformDirs

_DIRS = PlatformDirs("veloxquant-tui", appauthor=False)


def config() -> Path:
    """Settings and the user's own themes."""
    return _DIRS.user_config_path


def cache() -> Path:
    """What can be made again: downloaded and converted models."""
    return _DIRS.user_cache_path


def state() -> Path:
    """Sessions, prompt history and logs."""
    return _DIRS.user_state_path


def runtime() -> Path:
    """Sockets of running engines."""
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR it is a folder for temporary files, and platformdirs says so.
        warnings.simplefilter("ignore")
        return _DIRS.user_runtime_path


def settings() -> Path:
    return config() / "config.toml"


def themes() -> Path:
    return config() / "themes"


def models() -> Path:
    return cache() / "models"


def sessions() -> Path:
    return state() / "sessions"


def log() -> Path:
    return state() / "veloxquant-tui.log"
