"""How much a model minds few bits in each layer, and the bits that follow from it for a budget.

This is `ratequant` (arXiv 2605.06675): what counts is the effect on the next-token distribution,
since the error of the vectors alone says nothing of what softmax and the layers above make of it.
kvcore.probing measures both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from kvcore.allocation import Unit, allocate
from kvcore.artefact import Artefact, ArtefactError, check_model, fingerprint, load
from kvcore.cache import PackedKVCache
from kvcore.codec import Codec
from kvcore.config import KVCacheConfig
from kvcore.methods import METHODS

NAME = "ratequant"
SideName = Literal["keys", "values"]
SIDES: tuple[SideName, ...] = ("keys", "values")
MOST_BITS = 6
"""More are no longer seen in what the model says."""
_SMALLEST_EFFECT = 1e-7
"""Below that it is rounding."""


@dataclass(frozen=True)
class Sensitivity:
    """Of the keys or values of one layer, or of its KV head `head` (None: of all `kv_heads`).

    `effect`: mean KL divergence, in nats, of the next-token distribution to that of half precision,
    measured at `bits`. `errors`: of the vectors, squared and over their squared norm, by bits.
    """

    layer: int
    side: SideName
    head: int | None
    kv_heads: int
    head_dim: int
    bits: int
    effect: float
    errors: Mapping[int, float]

    def losses(self) -> dict[int, float]:
        """Expected effect by bits: it grows with the squared error."""
        weight = max(self.effect, _SMALLEST_EFFECT) / self.errors[self.bits]
        return {bits: weight * error for bits, error in self.errors.items()}


def widths(config: KVCacheConfig, side: SideName) -> range:
    """Bits that may be chosen for a side."""
    if side == "keys":
        limits = METHODS[config.method].key_bits
    else:
        limits = METHODS[config.value_method or config.method].value_bits
    assert limits is not None, "KVCacheConfig refuses a method for a side that it does not serve"
    return range(limits[0], max(limits[0], min(limits[1], MOST_BITS)) + 1)


def codec_at(config: KVCacheConfig, layer: int, side: SideName, bits: int) -> Codec:
    """The codec that a layer of these bits would pack that side with."""
    if side == "keys":
        return PackedKVCache(_without_budget(config, key_bits=bits), layer).key_codec
    return PackedKVCache(_without_budget(config, value_bits=bits), layer).value_codec


def layer_configs(config: KVCacheConfig, model: nn.Module) -> list[KVCacheConfig]:
    """One a packed layer, with the bits that `config`'s budget gives it.

    Raises ArtefactError for a sensitivity that is not of this model, or not of these methods, and
    ValueError for a budget that is too small.
    """
    assert config.sensitivity is not None
    artefact, arrays = load(config.sensitivity)
    check_model(artefact, model)
    if artefact.method != NAME:
        raise ArtefactError(
            f"{config.sensitivity} holds what {artefact.method} learnt, no sensitivity: calibrate"
            f" with --method {NAME}."
        )
    packed_with = (artefact.options.get("method"), artefact.options.get("value_method"))
    if packed_with != (config.method, config.value_method):
        raise ArtefactError(
            f"{config.sensitivity} was measured with {packed_with[0]} for keys and"
            f" {packed_with[1]} for values, not {config.method} and {config.value_method}:"
            " calibrate with those."
        )
    return allotted(config, from_arrays(arrays))


def allotted(config: KVCacheConfig, found: Sequence[Sensitivity]) -> list[KVCacheConfig]:
    """As `layer_configs`, from what `kvcore.probing.probe` found. Raises ValueError."""
    layers = 1 + max(one.layer for one in found)
    units: list[Unit] = []
    elements = 0
    for one in found:
        heads = one.kv_heads if one.head is None else 1
        elements += heads * one.head_dim
        losses = one.losses()
        nbytes = {
            bits: heads
            * codec_at(config, one.layer, one.side, bits).token_nbytes(one.head_dim, bits)
            for bits in losses
        }
        units.append(Unit(losses, nbytes))
    if config.mean_bits is not None:
        budget = config.mean_bits / 8 * elements
    else:
        assert config.token_budget is not None
        budget = config.token_budget
    of_layers: list[dict[str, Any]] = [{} for _ in range(layers)]
    for one, bits in zip(found, allocate(units, budget), strict=True):
        side, own = one.side.removesuffix("s"), of_layers[one.layer]
        if one.head is None:
            own[f"{side}_bits"] = bits
        else:
            own[f"{side}_head_bits"] = (*own.get(f"{side}_head_bits", ()), bits)
    return [_without_budget(config, **own) for own in of_layers]


def artefact_of(
    name: str, model: nn.Module, config: KVCacheConfig, tokens: int, context: int
) -> Artefact:
    """For kvcore.artefact.save, with `to_arrays`. `name`: the model's."""
    arrays = [x for _, x in tree_flatten(model.parameters()) if isinstance(x, mx.array)]
    dtype = next(array.dtype for array in arrays if array.ndim == 1)
    return Artefact(
        model=name,
        method=NAME,
        key_bits=None,
        value_bits=None,
        conditioning=config.conditioning or "none",
        options={"method": config.method, "value_method": config.value_method},
        value_options={},
        seed=config.seed,
        tokens=tokens,
        context=context,
        dtype=str(dtype).removeprefix("mlx.core."),
        fingerprint=fingerprint(model),
    )


def to_arrays(found: Sequence[Sensitivity]) -> dict[str, mx.array]:
    """A row each; an error of NaN where the method does not have the bits of its column."""
    most = max(max(one.errors) for one in found)
    errors = [[one.errors.get(bits, np.nan) for bits in range(most + 1)] for one in found]
    places = [
        [
            one.layer,
            SIDES.index(one.side),
            -1 if one.head is None else one.head,
            one.kv_heads,
            one.head_dim,
            one.bits,
        ]
        for one in found
    ]
    return {
        "places": mx.array(places, mx.int32),
        "effects": mx.array([one.effect for one in found], mx.float32),
        "errors": mx.array(errors, mx.float32),
    }


def from_arrays(arrays: Mapping[str, mx.array]) -> list[Sensitivity]:
    """What `to_arrays` was given."""
    rows = zip(*(np.array(arrays[name]) for name in ("places", "effects", "errors")), strict=True)
    return [
        Sensitivity(
            int(place[0]),
            SIDES[place[1]],
            None if place[2] < 0 else int(place[2]),
            *(int(number) for number in place[3:]),
            effect=float(effect),
            errors={bits: float(e) for bits, e in enumerate(errors) if not np.isnan(e)},
        )
        for place, effect, errors in rows
    ]


def _without_budget(config: KVCacheConfig, **bits: Any) -> KVCacheConfig:
    plain = {"key_head_bits": (), "value_head_bits": ()} | bits
    return replace(config, sensitivity=None, mean_bits=None, token_budget=None, **plain)
