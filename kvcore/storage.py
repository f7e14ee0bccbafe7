"""Caches in a file, in mlx-lm's own format."""

import types
from pathlib import Path
from typing import Any

from mlx_lm.models import cache as mlx_lm_cache

from kvcore.cache import PackedKVCache


def save(path: Path, caches: list[Any], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; `path` must end in .safetensors."""
    mlx_lm_cache.save_prompt_cache(str(path), caches, metadata or {})


def load(path: Path) -> tuple[list[Any], dict[str, str]]:
    """What `save` wrote: the caches at the bits they had, and the metadata."""
    # mlx-lm looks classes up among its module's names; this runs its code with ours added.
    names = {**mlx_lm_cache.load_prompt_cache.__globals__, "PackedKVCache": PackedKVCache}
    function = mlx_lm_cache.load_prompt_cache
    loader = types.FunctionType(function.__code__, names, function.__name__, (False,))
    return loader(str(path), return_metadata=True)
