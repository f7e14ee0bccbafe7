"""The methods by name: what each is for and at which bits it works. Imports no MLX."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Method:
    """`key_bits`, `value_bits`: fewest and most bits, None where the method does not serve that
    side. `calibrated`: it needs an artefact made by `calibrate`. `about`: what it is for."""

    name: str
    about: str
    key_bits: tuple[int, int] | None
    value_bits: tuple[int, int] | None
    calibrated: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "turboquant_mse",
            "rotation and nested Lloyd-Max codes; drops bits in place; the default",
            (1, 8),
            (1, 8),
        ),
    )
}


def default_conditioning(name: str) -> Literal["block_mean", "none"]:
    """Each method as its paper has it, but the default one as it measures best."""
    return "block_mean" if name == "turboquant_mse" else "none"


def default_value_method(name: str) -> str:
    """What packs the values where only the keys' method was named."""
    return name if METHODS[name].value_bits else "turboquant_mse"
