"""A calibrated transform code: each layer and KV head in a basis of its own, bits where they count.

Keys lose their mean, and the basis is that of their variance as the queries weigh it: with the
queries' second moment M = W W, the error of a score is that of W k, so W k is what is decorrelated.
Bits go to the dimensions, eight at a time, by reverse water-filling; those of little variance get
none, and are then what their mean is. The rotary embedding turns the statistics of keys as a text
goes on, so they are taken over positions far beyond the text that was read. Values have hardly any
such structure: they gain nothing over turboquant_mse.

This is the Karhunen-Loeve transform with Lloyd-Max codes; SpectralQuant
(Dynamis-Labs/spectralquant) bets on the same spectrum with two fixed bit widths instead.

Said of it in circulation: "96 % of the variance lies in 3-4 % of the dimensions". That misreads the
participation ratio, and an uncentred covariance besides, whose first direction is the mean. What
the basis gains over a random rotation is the arithmetic over the geometric mean of the variances,
which is nothing on isotropic vectors.
"""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import GROUP
from kvcore.codecs import Side, read_options
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import BLOCK, Codes
from kvcore.group_books import GroupBooks, group_books
from kvcore.layer_sample import LayerSample

# Mean square error of Lloyd-Max codes of 0 to 8 bits on N(0, 1).
_DISTORTION = (1, 0.36338, 0.117482, 0.034548, 0.009501, 0.0025047, 6.442e-4, 1.635e-4, 4.12e-5)
_SMALLEST_VARIANCE = 1e-6
"""Of the largest: smaller ones are rounding."""
_SMALLEST_MOMENT = 1e-3
"""Of the mean: queries elsewhere may look where those of the text did not."""
_REACH = 8
"""Statistics are those of sequences so many times as long as the ones that were read."""
_LOWER_TILES = 32


def learn(side: Side, sample: LayerSample) -> dict[str, mx.array]:
    """Float32 arrays: "encode" and "decode", [kv_heads, head_dim, head_dim], so that rows
    z = (x - mean) encode have unit variance in each dimension, the weightiest eight first, and
    x = z decode + mean; "mean", [kv_heads, head_dim]; "variance", what an error in each eight
    dimensions weighs, [kv_heads, head_dim / 8]."""
    read_options(side)
    vectors = np.array(sample.vectors(side.name, side.conditioning)).astype(np.float64)
    learnt: dict[str, list[np.ndarray]] = {"encode": [], "decode": [], "mean": [], "variance": []}
    for head, query_moment in zip(vectors, np.array(sample.query_moment), strict=True):
        head = head[np.isfinite(head).all(axis=-1)]
        mean = head.mean(axis=0)
        centred = head - mean
        if side.name == "keys":
            covariance = _at_all_positions(centred.T @ centred / len(centred), sample)
            root = _root(_at_all_positions(query_moment.astype(np.float64), sample))
        else:
            # Tokens of small values get the most attention; their errors count as much.
            centred = centred / np.maximum(np.linalg.norm(centred, axis=-1, keepdims=True), 1e-20)
            covariance, root = centred.T @ centred / len(centred), np.eye(len(mean))
        variance, basis = np.linalg.eigh(root @ covariance @ root)
        variance, basis = variance[::-1], basis[:, ::-1]
        variance = np.maximum(variance, _SMALLEST_VARIANCE * max(variance[0], 1e-30))
        deviation = np.sqrt(variance)
        mixing = _mixing(len(mean))
        learnt["encode"].append(root @ basis / deviation @ mixing)
        learnt["decode"].append((np.linalg.inv(root) @ basis * deviation @ mixing).T)
        learnt["mean"].append(mean)
        learnt["variance"].append(variance.reshape(-1, GROUP).mean(axis=-1))
    return {name: mx.array(np.stack(parts).astype(np.float32)) for name, parts in learnt.items()}


def make(side: Side) -> "Spectral":
    read_options(side)
    learnt = side.learnt
    variance = learnt["variance"]
    return Spectral(
        tuple(water_filled(of_head, side.bits) for of_head in np.array(variance)),
        side.bits,
        learnt["encode"],
        learnt["decode"],
        learnt["mean"][:, None],
        mx.repeat(variance, GROUP, axis=-1)[:, None],
        unbiased=side.name == "values",
    )


def water_filled(variance: np.ndarray, bits: int) -> tuple[int, ...]:
    """Groups of dimensions in the order in which they get their bits, one each at a time, the
    largest gain first, up to a mean of `bits`; fewer bits are a prefix. `variance`: [groups]."""
    order: list[int] = []
    given = np.zeros(len(variance), int)
    gains = -np.diff(_DISTORTION, append=_DISTORTION[-1])
    for _ in range(bits * len(variance)):
        group = int((variance * gains[given]).argmax())
        if given[group] == len(gains) - 1:
            group = int(given.argmin())
        order.append(group)
        given[group] += 1
    return tuple(order)


@dataclass(frozen=True, eq=False)
class Spectral:
    """Keeps bytes, and a scale in the vectors' own half precision, [batch, kv_heads, tokens, 1].
    Each byte has one bit of each of eight dimensions, in the order of `water_filled`, so that fewer
    bits are the first of the bytes: uint8 [batch, kv_heads, tokens, head_dim * bits / 8].

    `orders`: of each KV head, for `fine` bits. `to_basis`, `from_basis`: [kv_heads, head_dim,
    head_dim]. `mean`, `weight`: [kv_heads, 1, head_dim]. `unbiased`: as in TurboQuantMSE.
    """

    orders: tuple[tuple[int, ...], ...]
    fine: int
    to_basis: mx.array
    from_basis: mx.array
    mean: mx.array
    weight: mx.array
    unbiased: bool

    def __deepcopy__(self, memo: Any) -> "Spectral":
        return self  # nothing in it changes, and a copy would hold its arrays twice

    def tables(self, head_dim: int) -> list[mx.array]:
        return [self.to_basis, self.from_basis, self.mean, self.weight]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * bits / 8 + 2

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token["bytes"].size // codes.bits if codes.bits > 1 else 0

    def into_basis(self, queries: mx.array) -> mx.array:
        """And, last, each query's score with the mean."""
        coordinates = queries @ self.from_basis.swapaxes(-1, -2)
        return mx.concatenate([coordinates, queries @ self.mean.swapaxes(-1, -2)], axis=-1)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values[..., :-1] @ self.from_basis + values[..., -1:] * self.mean

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        books, half = self._books(bits), half_of(vectors)
        coordinates = (vectors.astype(mx.float32) - self.mean) @ self.to_basis
        of_coded = mx.sqrt(books.coded.mean(axis=-1, keepdims=True))
        unit, deviation = normalised(mx.where(books.coded, coordinates, 0))
        unit = unit * of_coded
        packed = books.pack(books.quantise(unit))
        scale = deviation / of_coded * self._first_scale(unit, books.centroids(packed))
        return Codes(bits, start, {"bytes": packed, "scale": to_half(scale, half)}, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        """The last bytes go; the scales follow from the codes, a tile of tokens at a time."""
        if bits >= codes.bits:
            return codes
        packed, old_scale = codes.per_token["bytes"], codes.per_token["scale"]
        kept = packed.shape[-1] // codes.bits * bits
        scale = mx.zeros_like(old_scale)
        tile = max(BLOCK, codes.tokens // _LOWER_TILES)
        for at in range(0, codes.tokens, tile):
            ratio = self._scale_ratio(packed[:, :, at : at + tile], codes.bits, bits)
            scale[:, :, at : at + tile] = to_half(
                old_scale[:, :, at : at + tile] * ratio, old_scale.dtype
            )
            mx.eval(scale)
        packed = mx.contiguous(packed[..., :kept])
        mx.eval(packed)
        return replace(codes, bits=bits, per_token={"bytes": packed, "scale": scale})

    def decode(self, codes: Codes) -> mx.array:
        return self.coordinates(codes) @ self.from_basis + self.mean

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries[..., :-1] @ self.coordinates(tile).swapaxes(-1, -2) + queries[..., -1:]

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        of_mean = weights.sum(axis=-1, keepdims=True)
        return mx.concatenate([weights @ self.coordinates(tile), of_mean], axis=-1)

    def coordinates(self, tile: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, head_dim], in the basis, without the mean."""
        centroids = self._books(tile.bits).centroids(tile.per_token["bytes"])
        return centroids * tile.per_token["scale"].astype(mx.float32)

    def _first_scale(self, unit: mx.array, centroids: mx.array) -> mx.array:
        """As in TurboQuantMSE, by what each dimension weighs."""
        norm = (self.weight * unit * unit).sum(axis=-1, keepdims=True)
        if self.unbiased:
            along = (self.weight * centroids * unit).sum(axis=-1, keepdims=True)
            return norm / mx.maximum(along, 1e-20)
        return mx.sqrt(norm / (self.weight * centroids * centroids).sum(axis=-1, keepdims=True))

    def _books(self, bits: int) -> GroupBooks:
        return group_books(self.orders, self.fine, bits)

    def _scale_ratio(self, packed: mx.array, bits: int, kept: int) -> mx.array:
        """As in TurboQuantMSE, over the dimensions that keep some bits."""
        books = self._books(kept)
        after = books.centroids(packed[..., : packed.shape[-1] // bits * kept])
        before = mx.where(books.coded, self._books(bits).centroids(packed), 0)
        energy = (self.weight * before * before).sum(axis=-1, keepdims=True)
        if self.unbiased:
            return energy / (self.weight * before * after).sum(axis=-1, keepdims=True)
        return mx.sqrt(energy / (self.weight * after * after).sum(axis=-1, keepdims=True))


def _at_all_positions(moment: np.ndarray, sample: LayerSample) -> np.ndarray:
    """Slow channels have hardly turned in the text, and will."""
    if sample.rotary is None:
        return moment
    return sample.rotary.spread(moment, _REACH * (max(sample.starts) + BLOCK))


def _root(moment: np.ndarray) -> np.ndarray:
    """The symmetric square root of a moment, invertible."""
    values, vectors = np.linalg.eigh(moment)
    values = np.maximum(values, 0) + _SMALLEST_MOMENT * max(values.mean(), 1e-30)
    return (vectors * np.sqrt(values)) @ vectors.T


def _mixing(head_dim: int) -> np.ndarray:
    """Each eight dimensions, which get the same bits, turned into one another: a Hadamard matrix.

    Principal components have heavy tails; their mixtures are nearer to the normal distribution that
    the codebooks are for.
    """
    two = np.array([[1, 1], [1, -1]]) / np.sqrt(2)
    return np.kron(np.eye(head_dim // GROUP), np.kron(two, np.kron(two, two)))
