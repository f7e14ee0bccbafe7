"""What a cache is made with."""

from dataclasses import dataclass
from difflib import get_close_matches

METHODS = ("turboquant_mse",)


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig:
    """Raises ValueError, with a sentence, for a field that is out of range.

    `key_bits`, `value_bits`: bits a code, 1 to 8. `window`: the last tokens, kept in half
    precision. `sinks`: the first tokens, kept so too. `seed`: of the rotation.
    """

    method: str = "turboquant_mse"
    key_bits: int = 6
    value_bits: int = 4
    window: int = 128
    sinks: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            near = get_close_matches(self.method, METHODS, n=1, cutoff=0)
            raise ValueError(
                f"method {self.method!r} is unknown; did you mean {near[0]!r}? "
                f"Known: {', '.join(METHODS)}."
            )
        for name, low, high in (
            ("key_bits", 1, 8),
            ("value_bits", 1, 8),
            ("window", 0, 65536),
            ("sinks", 0, 1024),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be a whole number, {low} to {high}, not {value!r}.")
