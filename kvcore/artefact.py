"""What a calibrated method has learnt of one model, in a folder: arrays.safetensors, artefact.json.

An artefact knows the model that it was made from by what neither another dtype nor quantised
weights change: its sizes, and the mean magnitude of each one-dimensional weight (norms, biases).
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from kvcore.config import KVCacheConfig
from kvcore.methods import METHODS

VERSION = 1
"""Counts what an artefact is like; others are refused."""
_ARRAYS, _RECORD = "arrays.safetensors", "artefact.json"
_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rope_theta",
)
SIDES = ("keys", "values")
_TOLERANCE = 0.01
"""Of a weight's mean magnitude; bfloat16 alone moves it by a thousandth."""


class ArtefactError(ValueError):
    """One sentence: what is wrong with the artefact, what to do."""


@dataclass(frozen=True)
class Artefact:
    """`model`: the name it was made from. `dtype`: of the keys that were seen; others may be
    packed. `key_bits`, `value_bits`: None for a side that is not served. `tokens`: read for it.
    `context`: tokens of the longest sequence among them. `fingerprint`: see `fingerprint`.
    `digest`: SHA-256 of the arrays' file. `version`: the format's."""

    model: str
    method: str
    key_bits: int | None
    value_bits: int | None
    conditioning: str
    options: Mapping[str, Any]
    value_options: Mapping[str, Any]
    seed: int
    tokens: int
    context: int
    dtype: str
    fingerprint: Mapping[str, Any]
    digest: str = ""
    version: int = VERSION


def save(folder: Path, artefact: Artefact, arrays: dict[str, mx.array]) -> None:
    """Write the folder, or replace the artefact in it; raises ArtefactError where it holds
    something else. `arrays`: by names like "layers.3.keys.basis"."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"new.{_ARRAYS}"
    mx.save_safetensors(str(written), arrays)
    record = asdict(artefact) | {"digest": _digest(written)}
    new_record = folder / f"new.{_RECORD}"
    new_record.write_text(json.dumps(record, indent=1), encoding="utf-8")
    written.replace(folder / _ARRAYS)
    new_record.replace(folder / _RECORD)


def check_folder(folder: Path) -> None:
    """Raises ArtefactError where an artefact may not be written there."""
    if folder.exists() and not folder.is_dir():
        raise ArtefactError(f"{folder} is a file: name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _RECORD).is_file():
        raise ArtefactError(f"{folder} holds other files: name a new folder.")


def read(folder: str | os.PathLike[str]) -> Artefact:
    """What artefact.json says; raises ArtefactError where there is none of this version."""
    path = Path(folder).expanduser() / _RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtefactError(
            f"there is no artefact in {folder}: make one with `veloxquant-tui calibrate`."
        ) from None
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}): calibrate again.") from error
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ArtefactError(
            f"{path} is not of version {VERSION}, which this program reads: calibrate again."
        )
    try:
        return Artefact(**{field.name: record[field.name] for field in fields(Artefact)})
    except KeyError as error:
        raise ArtefactError(f"{path} lacks {error}: calibrate again.") from error


def load(folder: str | os.PathLike[str]) -> tuple[Artefact, dict[str, mx.array]]:
    """What `save` wrote; raises ArtefactError where there is nothing, or it is damaged."""
    artefact = read(folder)
    return artefact, _arrays(str(Path(folder).expanduser() / _ARRAYS), artefact.digest)


def check_model(artefact: Artefact, model: nn.Module) -> None:
    """Raises ArtefactError where the artefact was made from another model."""
    seen, own = artefact.fingerprint, fingerprint(model)
    sizes = ("architecture", "sizes")
    same = all(seen.get(name) == own[name] for name in sizes) and _near(seen, own)
    if not same:
        raise ArtefactError(
            f"the artefact was made from {artefact.model}, and this is another model: calibrate it."
        )


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """The model's architecture, its sizes, and the mean magnitude of each 1-D weight, in order."""
    args = getattr(model, "args", None)
    arrays = [x for _, x in tree_flatten(model.parameters()) if isinstance(x, mx.array)]
    weights = [array.astype(mx.float32) for array in arrays if array.ndim == 1]
    return {
        "architecture": type(model).__module__.rpartition(".")[2],
        "sizes": {name: getattr(args, name) for name in _SIZES if hasattr(args, name)},
        "weights": [[array.size, mx.abs(array).mean().item()] for array in weights],
    }


def digest(config: KVCacheConfig) -> str:
    """Names the artefact that `config` packs with; "" where it needs none."""
    return "" if config.artefact is None else read(config.artefact).digest


@dataclass(frozen=True)
class Learnt:
    """A layer's arrays for the method of the keys and of the values, empty for one that does not
    learn."""

    keys: dict[str, mx.array]
    values: dict[str, mx.array]


def learnt(config: KVCacheConfig, layer: int) -> Learnt:
    """What the codecs of a layer need; `layer`: its number among those that are packed.

    Raises ArtefactError where the artefact is not what the configuration needs.
    """
    if config.artefact is None:
        return Learnt({}, {})
    artefact = read(config.artefact)
    arrays = _arrays(str(Path(config.artefact).expanduser() / _ARRAYS), artefact.digest)
    keys, values = (_of_side(artefact, arrays, config, layer, side) for side in SIDES)
    return Learnt(keys, values)


def _of_side(
    artefact: Artefact,
    arrays: dict[str, mx.array],
    config: KVCacheConfig,
    layer: int,
    side: str,
) -> dict[str, mx.array]:
    method = config.method if side == "keys" else config.value_method
    assert method is not None
    if not METHODS[method].calibrated:
        return {}
    if artefact.method != method:
        raise ArtefactError(
            f"{config.artefact} holds what {artefact.method} learnt, and {method} packs the {side}:"
            " give the artefact of that method."
        )
    if side == "keys" and artefact.conditioning != config.conditioning:
        raise ArtefactError(
            f"{config.artefact} was calibrated with conditioning {artefact.conditioning!r}, not"
            f" {config.conditioning!r}: give that, or calibrate with the other."
        )
    if artefact.seed != config.seed:
        raise ArtefactError(
            f"{config.artefact} was calibrated with seed {artefact.seed}, not {config.seed}:"
            " give that, or calibrate with the other."
        )
    prefix = f"layers.{layer}.{side}."
    own = {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
    if not own:
        raise ArtefactError(f"{config.artefact} has nothing for the {side} of layer {layer}.")
    return own


@lru_cache(maxsize=1)
def _arrays(path: str, digest: str) -> dict[str, mx.array]:
    """Evaluated; every layer's cache asks for the same ones."""
    try:
        found = _digest(Path(path))
    except OSError as error:
        raise ArtefactError(
            f"{path} cannot be read ({error.strerror}): calibrate again."
        ) from error
    if found != digest:
        raise ArtefactError(f"{path} is damaged: calibrate again.")
    arrays = mx.load(path)
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    return arrays


def _near(seen: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    pairs = list(zip(seen.get("weights", ()), own["weights"], strict=False))
    return len(seen.get("weights", ())) == len(own["weights"]) and all(
        one[0] == other[0] and abs(one[1] - other[1]) <= _TOLERANCE * max(abs(one[1]), 1e-6)
        for one, other in pairs
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
