"""A calibrated transform code: each layer and KV head in a basis of its own, bits where they count.

Keys lose their mean, and the basis is that of their variance as the queries weigh it: with the
queries' second moment M = W W, the error of a score is that of W k, so W k is what is decorrelated.
Bits go to the dimensions by reverse water-filling; one of little variance gets none, and is then
what its mean is. This is the Karhunen-Loeve transform with Lloyd-Max codes; SpectralQuant
(Dynamis-Labs/spectralquant) bets on the same spectrum with two fixed bit widths instead.

Said of it in circulation: "96 % of the variance lies in 3-4 % of the dimensions". That misreads the
participation ratio, and an uncentred covariance besides, whose first direction is the mean. What
the basis gains over a random rotation is the arithmetic over the geometric mean of the variances,
which is nothing on isotropic vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import GROUP
from kvcore.codebooks import centroid, codebook, quantise
from kvcore.codecs import Side, read_options
from kvcore.codes import BLOCK, Codes
from kvcore.layer_sample import LayerSample

# Mean square error of Lloyd-Max codes of 0 to 8 bits on N(0, 1).
_DISTORTION = (1, 0.36338, 0.117482, 0.034548, 0.009501, 0.0025047, 6.442e-4, 1.635e-4, 4.12e-5)
_SMALLEST_VARIANCE = 1e-6
"""Of the largest: smaller ones are rounding."""
_LARGEST_HALF = 65504.0
_LOWER_TILES = 32


def learn(side: Side, sample: LayerSample) -> dict[str, mx.array]:
    """Float32 arrays: "encode" and "decode", [kv_heads, head_dim, head_dim], so that rows
    z = (x - mean) encode have unit variance in each dimension, the weightiest first, and
    x = z decode + mean; "mean"; "variance", what a dimension's error weighs, [kv_heads, head_dim]
    both."""
    read_options(side)
    vectors = np.array(sample.vectors(side.name, side.conditioning)).astype(np.float64)
    moments = np.array(sample.query_moment).astype(np.float64)
    learnt: dict[str, list[np.ndarray]] = {"encode": [], "decode": [], "mean": [], "variance": []}
    for head, moment in zip(vectors, moments, strict=True):
        head = head[np.isfinite(head).all(axis=-1)]
        mean = head.mean(axis=0)
        root = _root(moment) if side.name == "keys" else np.eye(len(mean))
        weighed = (head - mean) @ root
        variance, basis = np.linalg.eigh(weighed.T @ weighed / len(weighed))
        variance, basis = variance[::-1], basis[:, ::-1]
        variance = np.maximum(variance, _SMALLEST_VARIANCE * max(variance[0], 1e-30))
        deviation = np.sqrt(variance)
        learnt["encode"].append(root @ basis / deviation)
        learnt["decode"].append((np.linalg.inv(root) @ basis * deviation).T)
        learnt["mean"].append(mean)
        learnt["variance"].append(variance)
    return {name: mx.array(np.stack(parts).astype(np.float32)) for name, parts in learnt.items()}


def make(side: Side) -> "Spectral":
    read_options(side)
    learnt = side.learnt
    variance = learnt["variance"]
    return Spectral(
        water_filled(np.array(variance), side.bits),
        learnt["encode"],
        learnt["decode"],
        learnt["mean"][:, None],
        variance[:, None],
        unbiased=side.name == "values",
    )


def water_filled(variance: np.ndarray, bits: int) -> tuple[int, ...]:
    """Groups of eight dimensions in the order in which they get their bits, one each at a time, up
    to a mean of `bits`: the largest gain first, over all heads [kv_heads, head_dim], whose
    dimensions are in the order of their variance.

    Fewer bits are a prefix. A group never has more than the one before.
    """
    of_groups = np.sort(variance)[:, ::-1].mean(axis=0).reshape(-1, GROUP).mean(axis=-1)
    order: list[int] = []
    given = np.zeros(len(of_groups), int)
    steps = -np.diff(_DISTORTION, append=_DISTORTION[-1])
    for _ in range(bits * len(of_groups)):
        group = int((of_groups * steps[given]).argmax())
        order.append(group)
        given[group] += 1
    return tuple(order)


@dataclass(frozen=True, eq=False)
class Spectral:
    """Keeps bit planes and a scale, fp16 [batch, kv_heads, tokens, 1], for each vector. "plane0"
    has the highest bit of each dimension that has any, "plane1" the next of those that have two,
    and so on: uint8 [batch, kv_heads, tokens, groups of eight dimensions].

    `order`: see `water_filled`, for the most bits. `to_basis`, `from_basis`: [kv_heads, head_dim,
    head_dim]. `mean`, `weight`: [kv_heads, 1, head_dim]. `unbiased`: as in TurboQuantMSE.
    """

    order: tuple[int, ...]
    to_basis: mx.array
    from_basis: mx.array
    mean: mx.array
    weight: mx.array
    unbiased: bool

    def __deepcopy__(self, memo: Any) -> "Spectral":
        return self  # nothing in it changes, and a copy would hold its arrays twice

    def depths(self, bits: int) -> tuple[int, ...]:
        """Bits of each group of eight dimensions, for those that have any."""
        groups = self.to_basis.shape[-1] // GROUP
        depths = np.bincount(self.order[: bits * groups])
        return tuple(depths.tolist())

    def tables(self, head_dim: int) -> list[mx.array]:
        return [self.to_basis, self.from_basis, self.mean, self.weight]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * bits / 8 + 2

    def bit_nbytes(self, codes: Codes) -> int:
        scale = codes.per_token["scale"]
        return scale.size * self.to_basis.shape[-1] // 8 if codes.bits > 1 else 0

    def into_basis(self, queries: mx.array) -> mx.array:
        """And, last, each query's score with the mean."""
        return mx.concatenate(
            [queries @ self.from_basis.swapaxes(-1, -2), queries @ self.mean.swapaxes(-1, -2)],
            axis=-1,
        )

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values[..., :-1] @ self.from_basis + values[..., -1:] * self.mean

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        depths = self.depths(bits)
        fine = self.depths_at_first[: len(depths)]
        coded = (vectors.astype(mx.float32) - self.mean) @ self.to_basis[..., : len(depths) * GROUP]
        weight = self.weight[..., : coded.shape[-1]]
        deviation = mx.sqrt((coded * coded).mean(axis=-1, keepdims=True))
        codes = _quantised(coded / mx.maximum(deviation, 1e-20), fine, depths)
        planes = _packed(codes, depths)
        centroids = _dequantiser(fine, depths)(planes)
        norm = (weight * coded * coded).sum(axis=-1, keepdims=True)
        if self.unbiased:
            along = (weight * coded * centroids).sum(axis=-1, keepdims=True)
            scale = norm / mx.maximum(along, 1e-20)
        else:
            scale = mx.sqrt(norm / (weight * centroids * centroids).sum(axis=-1, keepdims=True))
        scale = mx.minimum(scale, _LARGEST_HALF).astype(mx.float16)
        return Codes(bits, start, _named(planes) | {"scale": scale}, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        """Low planes go, some in part; the scales follow from the codes, a tile at a time."""
        if bits >= codes.bits:
            return codes
        old, new = self.depths(codes.bits), self.depths(bits)
        old_scale = codes.per_token["scale"]
        scale = mx.zeros_like(old_scale)
        tile = max(BLOCK, codes.tokens // _LOWER_TILES)
        for at in range(0, codes.tokens, tile):
            planes = tuple(plane[:, :, at : at + tile] for plane in _planes(codes))
            ratio = self._scale_ratio(planes, old, new)
            scale[:, :, at : at + tile] = old_scale[:, :, at : at + tile] * ratio
            mx.eval(scale)
        planes = tuple(mx.contiguous(plane) for plane in _dropped(_planes(codes), new))
        mx.eval(planes)
        return replace(codes, bits=bits, per_token=_named(planes) | {"scale": scale})

    def decode(self, codes: Codes) -> mx.array:
        coordinates = self.coordinates(codes)
        return coordinates @ self.from_basis[:, : coordinates.shape[-1]] + self.mean

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        coordinates = self.coordinates(tile)
        of_basis = queries[..., : coordinates.shape[-1]]
        return of_basis @ coordinates.swapaxes(-1, -2) + queries[..., -1:]

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        summed = weights @ self.coordinates(tile)
        without = self.to_basis.shape[-1] - summed.shape[-1]
        summed = mx.pad(summed, [(0, 0)] * 3 + [(0, without)])
        return mx.concatenate([summed, weights.sum(axis=-1, keepdims=True)], axis=-1)

    def coordinates(self, tile: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, dimensions that have bits]."""
        depths = self.depths(tile.bits)
        fine = self.depths_at_first[: len(depths)]
        return _dequantiser(fine, depths)(_planes(tile)) * tile.per_token["scale"].astype(
            mx.float32
        )

    @property
    def depths_at_first(self) -> tuple[int, ...]:
        """At the bits that the codes are nested in."""
        return self.depths(len(self.order) * GROUP // self.to_basis.shape[-1])

    def _scale_ratio(
        self, planes: tuple[mx.array, ...], old: tuple[int, ...], new: tuple[int, ...]
    ) -> mx.array:
        """As in TurboQuantMSE, over the dimensions that keep some bits."""
        fine = self.depths_at_first
        after = _dequantiser(fine[: len(new)], new)(_dropped(planes, new))
        before = _dequantiser(fine[: len(old)], old)(planes)[..., : after.shape[-1]]
        weight = self.weight[..., : after.shape[-1]]
        energy = (weight * before * before).sum(axis=-1, keepdims=True)
        if self.unbiased:
            return (energy / (weight * before * after).sum(axis=-1, keepdims=True)).astype(
                mx.float16
            )
        ratio = mx.sqrt(energy / (weight * after * after).sum(axis=-1, keepdims=True))
        return ratio.astype(mx.float16)


def _named(planes: tuple[mx.array, ...]) -> dict[str, mx.array]:
    return {f"plane{i}": plane for i, plane in enumerate(planes)}


def _planes(codes: Codes) -> tuple[mx.array, ...]:
    return tuple(codes.per_token[f"plane{i}"] for i in range(len(codes.per_token) - 1))


def _dropped(planes: tuple[mx.array, ...], depths: tuple[int, ...]) -> tuple[mx.array, ...]:
    """What is left of the planes at fewer bits."""
    groups = (sum(depth > level for depth in depths) for level in range(max(depths)))
    return tuple(plane[..., :count] for plane, count in zip(planes, groups, strict=False))


def _runs(fine: tuple[int, ...], depths: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(first group, group after the last, fine bits, bits) of groups that follow each other and are
    coded alike."""
    kinds = list(zip(fine, depths, strict=True))
    edges = [i for i in range(len(kinds)) if i == 0 or kinds[i] != kinds[i - 1]]
    return [(a, b, *kinds[a]) for a, b in zip(edges, [*edges[1:], len(kinds)], strict=True)]


def _quantised(x: mx.array, fine: tuple[int, ...], depths: tuple[int, ...]) -> mx.array:
    """Codes, uint32, of coordinates of unit variance."""
    parts = [
        quantise(x[..., start * GROUP : stop * GROUP], codebook(fine_bits, bits))
        for start, stop, fine_bits, bits in _runs(fine, depths)
    ]
    return mx.concatenate(parts, axis=-1)


def _packed(codes: mx.array, depths: tuple[int, ...]) -> tuple[mx.array, ...]:
    groups = codes.reshape(*codes.shape[:-1], -1, GROUP)
    places = mx.arange(GROUP, dtype=mx.uint32)
    planes = []
    for level in range(max(depths)):
        shifts = mx.array([depth - 1 - level for depth in depths if depth > level], mx.uint32)
        bit = (groups[..., : shifts.size, :] >> shifts[:, None]) & 1
        planes.append((bit << places).sum(axis=-1).astype(mx.uint8))
    return tuple(planes)


@cache
def _dequantiser(
    fine: tuple[int, ...], depths: tuple[int, ...]
) -> Callable[[tuple[mx.array, ...]], mx.array]:
    """Planes -> centroids, float32 [..., dimensions that have bits]."""
    runs = _runs(fine, depths)

    def dequantise(planes: tuple[mx.array, ...]) -> mx.array:
        places = mx.arange(GROUP, dtype=mx.uint32)
        parts = []
        for start, stop, fine_bits, bits in runs:
            codes = mx.array(0, mx.uint32)
            for plane in planes[:bits]:
                bit = (plane[..., start:stop, None].astype(mx.uint32) >> places) & 1
                codes = (codes << 1) | bit
            parts.append(centroid(codes, codebook(fine_bits, bits)))
        centroids = mx.concatenate(parts, axis=-2)
        return centroids.reshape(*centroids.shape[:-2], -1)

    return mx.compile(dequantise)


def _root(moment: np.ndarray) -> np.ndarray:
    """The symmetric square root of a moment, with a floor that keeps it invertible."""
    values, vectors = np.linalg.eigh(moment)
    values = np.maximum(values, 0) + 1e-3 * max(values.mean(), 1e-30)
    return (vectors * np.sqrt(values)) @ vectors.T
