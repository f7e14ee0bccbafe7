"""What a cache is made with. Imports no MLX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from kvcore.methods import METHODS, default_conditioning, default_value_method

MAX_OUTLIERS = 64
CONDITIONINGS = ("block_mean", "none")
DEFAULT_BITS = {"key_bits": 6, "value_bits": 4}
_LEFT_OUT = -1


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig:
    """Raises ValueError, with a sentence, for a field that is out of range.

    `method`: packs the keys, and the values unless `value_method` names another. `key_bits`,
    `value_bits`: bits a code; left out, they are 6 and 4, or what the method has that is nearest.
    `window`: the last tokens, kept in half precision; `sinks`: the first tokens, kept so too.
    `conditioning`: what keys lose before they are packed, "block_mean" (each block's own channel
    mean, the default of turboquant_mse) or "none" (that of the others). `outliers`: strongest
    channels of the keys of each block that are kept as int8. `seed`: of whatever is random.
    `options`, `value_options`: what belongs to one method, as its own docstring says. `artefact`:
    folder that `calibrate` wrote, for methods that learn. `sensitivity`: folder that `calibrate
    --method ratequant` wrote; each layer's bits are then chosen, in place of `key_bits` and
    `value_bits`, within `mean_bits`, the bits an element that packed tokens may take on average, or
    within `token_budget`, the bytes one may take in all layers together; scales and means count.
    `key_head_bits`, `value_head_bits`: bits for each KV head, in place of the same for all.
    """

    method: str = "turboquant_mse"
    value_method: str | None = None
    key_bits: int = _LEFT_OUT
    value_bits: int = _LEFT_OUT
    window: int = 128
    sinks: int = 4
    conditioning: Literal["block_mean", "none"] | None = None
    outliers: int = 0
    seed: int = 0
    options: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    value_options: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    artefact: str | None = None
    sensitivity: str | None = None
    mean_bits: float | None = None
    token_budget: float | None = None
    key_head_bits: Sequence[int] = ()
    value_head_bits: Sequence[int] = ()

    def __post_init__(self) -> None:
        _check_name("method", self.method)
        if self.value_method is not None:
            _check_name("value_method", self.value_method)
        packs_values = self.value_method or default_value_method(self.method)
        object.__setattr__(self, "value_method", packs_values)
        self._check_head_bits("key", self.method)
        self._check_head_bits("value", packs_values)
        for name, limits in (
            ("key_bits", METHODS[self.method].key_bits),
            ("value_bits", METHODS[packs_values].value_bits),
            ("window", (0, 65536)),
            ("sinks", (0, 1024)),
            ("outliers", (0, MAX_OUTLIERS)),
            ("seed", (0, 2**32 - 1)),
        ):
            if limits and getattr(self, name) == _LEFT_OUT and name in DEFAULT_BITS:
                low, high = limits
                object.__setattr__(self, name, max(low, min(DEFAULT_BITS[name], high)))
            _check_number(name, getattr(self, name), limits, self)
        if self.conditioning is None:
            object.__setattr__(self, "conditioning", default_conditioning(self.method))
        elif self.conditioning not in CONDITIONINGS:
            known = " or ".join(map(repr, CONDITIONINGS))
            raise ValueError(f"conditioning must be {known}, not {self.conditioning!r}.")
        budgets = [x for x in (self.mean_bits, self.token_budget) if x is not None]
        if len(budgets) != (self.sensitivity is not None):
            raise ValueError(
                "sensitivity needs a budget, and a budget sensitivity: give the folder, and either"
                " mean_bits or token_budget."
            )
        for method, artefact in ((self.method, self.artefact), (packs_values, self.artefact)):
            if METHODS[method].calibrated and artefact is None:
                raise ValueError(
                    f"method {method!r} needs an artefact: make one with `veloxquant-tui calibrate`"
                    " and give its folder as artefact."
                )

    def _check_head_bits(self, side: str, method: str) -> None:
        """And makes them a tuple, and the side's bits their most."""
        name = f"{side}_head_bits"
        head_bits = tuple(getattr(self, name))
        object.__setattr__(self, name, head_bits)
        if head_bits and METHODS[method].calibrated:
            raise ValueError(f"method {method!r} has learnt of all heads together: no {name} then.")
        for bits in head_bits:
            _check_number(name, bits, getattr(METHODS[method], f"{side}_bits"), self)
            object.__setattr__(self, f"{side}_bits", max(head_bits))


def _check_name(field_name: str, method: str) -> None:
    if method not in METHODS:
        near = get_close_matches(str(method), METHODS)
        near = near or get_close_matches(str(method), METHODS, n=1, cutoff=0)
        raise ValueError(
            f"{field_name} {method!r} is unknown; did you mean {' or '.join(map(repr, near))}? "
            f"Known: {', '.join(METHODS)}."
        )


def _check_number(
    name: str, value: object, limits: tuple[int, int] | None, config: KVCacheConfig
) -> None:
    if limits is None:
        method = config.method if name == "key_bits" else config.value_method
        raise ValueError(f"method {method!r} does not pack {name.removesuffix('_bits')}s.")
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        allowed = f"{low} to {high}" if low < high else f"{low}"
        raise ValueError(f"{name} must be a whole number, {allowed}, not {value!r}.")
