"""Lloyd-Max codebooks of any density, nested so that low bits of a code can be dropped.

A density is given on an even grid; integrals over a cell are sums over the grid, cut linearly where
a threshold lies between two points. `kvcore.codebooks` has the normal's in closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np

_STEPS = 20_000


@dataclass(frozen=True)
class DensityCodebook:
    """`thresholds`: increasing, one fewer than the cells. `probabilities`, `centroids`: of each
    cell, the centroid being the density's mean there."""

    thresholds: tuple[float, ...]
    probabilities: tuple[float, ...]
    centroids: tuple[float, ...]

    def merged(self, dropped: int) -> "DensityCodebook":
        """The book of the codes without their lowest `dropped` bits."""
        step = 1 << dropped
        probabilities = np.reshape(self.probabilities, (-1, step)).sum(axis=1)
        weighted = np.multiply(self.probabilities, self.centroids).reshape(-1, step).sum(axis=1)
        return DensityCodebook(
            self.thresholds[step - 1 :: step],
            tuple(probabilities.tolist()),
            tuple((weighted / probabilities).tolist()),
        )

    def distortion(self, second_moment: float) -> float:
        """Mean squared error for the density itself, whose E[x^2] is `second_moment`."""
        return second_moment - float(np.dot(self.probabilities, np.square(self.centroids)))


def lloyd_max_of(grid: np.ndarray, density: np.ndarray, bits: int) -> DensityCodebook:
    """The best quantiser of 2**bits cells; `density`, at the points of `grid`, of any total."""
    masses = _cumulative(grid, density / np.trapezoid(density, grid))
    moments = _cumulative(grid, grid * density / np.trapezoid(density, grid))
    cells = 1 << bits
    # Start at the optimal point density, which is the cube root of the source's.
    points = _cumulative(grid, np.cbrt(density))
    inner = np.interp(np.arange(1, cells) / cells * points[-1], points, grid)
    for _ in range(_STEPS):
        probabilities, centroids = _cells(grid, masses, moments, inner)
        moved = (centroids[1:] + centroids[:-1]) / 2
        step = np.abs(moved - inner).max()
        inner = moved
        if step < 1e-10:
            break
    probabilities, centroids = _cells(grid, masses, moments, inner)
    return DensityCodebook(*(tuple(x.tolist()) for x in (inner, probabilities, centroids)))


def quantise_by(thresholds: tuple[float, ...], x: mx.array) -> mx.array:
    """Codes, uint32, of x of any shape: the number of thresholds below each."""
    return _counter(thresholds)(x)


@cache
def _counter(thresholds: tuple[float, ...]) -> Callable[[mx.array], mx.array]:
    @mx.compile
    def count(x: mx.array) -> mx.array:
        below = mx.zeros(x.shape, mx.uint32)
        for threshold in thresholds:
            below = below + (x > threshold)
        return below

    return count


def _cumulative(grid: np.ndarray, density: np.ndarray) -> np.ndarray:
    areas = (density[1:] + density[:-1]) / 2 * np.diff(grid)
    return np.concatenate([[0.0], np.cumsum(areas)])


def _cells(
    grid: np.ndarray, masses: np.ndarray, moments: np.ndarray, inner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    probabilities = np.diff(np.interp(inner, grid, masses), prepend=0, append=masses[-1])
    means = np.diff(np.interp(inner, grid, moments), prepend=0, append=moments[-1])
    return probabilities, means / probabilities
