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
        Method(
            "turboquant_prod",
            "codes of one bit less and a sign sketch of what they leave; unbiased scores",
            (1, 8),
            (2, 8),
        ),
        Method(
            "qjl",
            "signs of random sketches, one a bit; unbiased scores; drops bits in place",
            (1, 4),
            None,
        ),
        Method(
            "rabitq",
            "the best point of a grid, an unbiased scale, bounded errors; drops bits in place",
            (1, 4),
            (1, 4),
        ),
        Method(
            "turboquant_rvq",
            "two passes of half the bits each, the second droppable; one pass is better",
            (2, 8),
            (2, 8),
        ),
        Method(
            "polarquant",
            "angles of a recursive polar transform, 3.875 bits with their radii",
            (4, 4),
            (4, 4),
        ),
        Method(
            "kivi",
            "rounding with no rotation, keys by channel, values by token; drops bits in place",
            (1, 8),
            (1, 8),
        ),
        Method(
            "affine",
            "MLX's own codes of groups of channels, multiplied by as they are",
            (2, 8),
            (2, 8),
        ),
        Method("fp16", "half precision, the reference", (16, 16), (16, 16)),
        Method(
            "spectral",
            "a calibrated basis for each head, bits where queries look; drops bits in place",
            (1, 8),
            (1, 8),
            calibrated=True,
        ),
        Method(
            "vecinfer",
            "calibrated codebooks of sub-vectors, scores from a table; very few bits",
            (1, 4),
            (1, 4),
            calibrated=True,
        ),
        Method(
            "comm_vq",
            "calibrated codebooks for keys before RoPE; very few bits; drops stages in place",
            (1, 4),
            None,
            calibrated=True,
        ),
    )
}


def default_conditioning(name: str) -> Literal["block_mean", "none"]:
    """Each method as its paper has it; the default one, and one without a paper, as they measure
    best."""
    return "block_mean" if name in ("turboquant_mse", "spectral") else "none"


def default_value_method(name: str) -> str:
    """What packs the values where only the keys' method was named."""
    return name if METHODS[name].value_bits else "turboquant_mse"
