"""One method a file; each module has `make(side)`, a codec for one side of one layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

import mlx.core as mx

from kvcore.codec import Codec
from kvcore.codecs.conditioning import BlockMean
from kvcore.codecs.outliers import Outliers


@dataclass(frozen=True)
class Side:
    """What a codec is made for. `bits`: those it starts with. `learnt`: the layer's arrays in the
    artefact of a calibrated method, by name, which its module's `learn(side, sample)` gives; see
    kvcore.layer_sample. `conditioning`, `outliers`: as in KVCacheConfig; `make_codec` sees to both,
    a method need not."""

    name: Literal["keys", "values"]
    bits: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    learnt: Mapping[str, mx.array] = field(default_factory=dict)
    conditioning: Literal["block_mean", "none"] = "none"
    outliers: int = 0


def make_codec(method: str, side: Side) -> Codec:
    """Raises ValueError, with a sentence, for options that the method does not have."""
    # The mean goes before the outliers are chosen, so nothing within may remove it.
    within = replace(side, conditioning="none") if side.outliers else side
    codec: Codec = import_module(f"kvcore.codecs.{method}").make(within)
    if side.outliers:
        codec = Outliers(codec, side.outliers)
    if side.conditioning == "block_mean" and not getattr(codec, "centred", False):
        codec = BlockMean(codec)
    return codec


def read_options(side: Side, **defaults: Any) -> dict[str, Any]:
    """The method's options, those not given at their defaults.

    Raises ValueError for an unknown name, or a value of another type than the default's.
    """
    for name, value in side.options.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise ValueError(f"option {name!r} is unknown to this method; known: {known}.")
        if type(value) is not type(defaults[name]):
            kind = type(defaults[name]).__name__
            raise ValueError(f"option {name!r} must be {kind}, not {value!r}.")
    return defaults | dict(side.options)
