"""RaBitQ (arXiv 2405.12497), extended to several bits (2409.09913): a grid, and an unbiased scale.

A rotated vector becomes the point of the grid {-2^b + 1, -2^b + 3, ..., 2^b - 1}^head_dim, v, that
points most nearly its way, and a scale |k|^2 / <v, k>, with which <q, scale v> is an unbiased
estimate of <q, k>. The paper finds v among all rescalings by a queue of the places where one of
them changes a coordinate; a sweep over 32 of them, as here, comes within .1 % of its error and
holds one candidate at a time, not head_dim times seven.

By option queries are rounded to 4 bits, at random so that nothing is biased, and scores counted by
AND and popcount over bit planes. Rounded to one bit, as XOR and popcount would have it, they would
give the biased estimate of kvcore.sketch. On two CPU cores counting takes a third to all of the
time that full precision takes for up to four rows of queries, and up to four times as much for
many; full precision is the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import mlx.core as mx

from kvcore.codecs import Side, read_options
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import BLOCK, Codes
from kvcore.popcount import dot, pack_planes, total, unpack_planes
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table

EPSILON = 1.9
"""The paper's; an error beyond the bound is then as rare as a normal variable beyond 1.9 sigma."""
QUERY_BITS = 4
_LARGEST_QUERY = (1 << QUERY_BITS) - 1
_LOWER_TILES = 32
_TYPICAL_RESCALE = {2: 0.986, 3: 1.69, 4: 3.03}
"""Steps a standard deviation at which v points best, for most vectors."""
_SWEEP = (0.62, 1.38, 32)
"""Smallest and largest rescale that is tried, in typical ones, and how many are."""


def make(side: Side) -> "RaBitQ":
    """Options: `query_bits`, 4, or 0 for full precision; `error_bound`, whether to keep for each
    vector what `RaBitQ.error_bound` needs; `rotation`, "hadamard" or "haar"."""
    options = read_options(side, query_bits=0, error_bound=False, rotation="hadamard")
    if options["query_bits"] not in (0, QUERY_BITS):
        raise ValueError(
            f"option 'query_bits' must be 0 or {QUERY_BITS}, not {options['query_bits']}."
        )
    check_rotation(options["rotation"])
    return RaBitQ(
        rounds_queries=options["query_bits"] > 0,
        keeps_error=options["error_bound"],
        rotation=options["rotation"],
        seed=side.seed,
    )


@dataclass(frozen=True)
class RaBitQ:
    """Keeps a plane for each bit of (v + 2^b - 1) / 2, `plane0` the highest, uint8 [batch,
    kv_heads, tokens, head_dim / 8], and `scale`, half precision [batch, kv_heads, tokens, 1]; to
    bound errors also `error`, as `scale`: sqrt(1 - a^2) / a of the root mean square of a vector's
    coordinates, a the cosine between v and k.

    Low planes can be dropped: what is left are codes of fewer bits, if not quite the best ones.
    Their scale follows from the codes, and no longer makes the estimate quite unbiased: on
    isotropic vectors it comes out .1 % too short from 4 bits to 3, at most 2.5 % from 2 to 1.
    """

    rounds_queries: bool = False
    keeps_error: bool = False
    rotation: str = "hadamard"
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        return [rotation_table(head_dim, self.seed, self.rotation)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * bits / 8 + (4 if self.keeps_error else 2)

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token["plane0"].size

    def into_basis(self, queries: mx.array) -> mx.array:
        """With rounded queries, whole numbers from 0 to 15, then what 0 means, then a step."""
        rotated = rotate(queries, self.seed, self.rotation)
        if not self.rounds_queries:
            return rotated
        low = rotated.min(axis=-1, keepdims=True)
        step = (rotated.max(axis=-1, keepdims=True) - low) / _LARGEST_QUERY
        step = mx.maximum(step, 1e-30)
        random = mx.random.uniform(shape=rotated.shape, key=mx.random.key(self.seed))
        rounded = mx.minimum(mx.floor((rotated - low) / step + random), _LARGEST_QUERY)
        return mx.concatenate([rounded, low, step], axis=-1)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return rotate_back(values, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        half = half_of(vectors)
        vectors, deviation = normalised(vectors)
        rotated = rotate(vectors, self.seed, self.rotation)
        codes = _best_codes(rotated, bits)
        grid = _grid_points(codes, bits)
        along = mx.maximum((grid * rotated).sum(axis=-1, keepdims=True), 1e-20)
        length = vectors.shape[-1]  # of the squared norm of `rotated`, unless that is zero
        held = _named(pack_planes(codes, bits))
        held["scale"] = to_half(deviation * length / along, half)
        if self.keeps_error:
            inverse_cosine = length * mx.square(grid).sum(axis=-1, keepdims=True) / along**2
            error = mx.sqrt(mx.maximum(inverse_cosine - 1, 0))
            held["error"] = to_half(deviation * error, half)
        return Codes(bits, start, held, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        """A tile of tokens at a time, so that little is added to what is held."""
        if bits >= codes.bits:
            return codes
        held = codes.per_token
        scales = {name: mx.zeros_like(held[name]) for name in ("scale", "error") if name in held}
        tile = max(BLOCK, codes.tokens // _LOWER_TILES)
        for start in range(0, codes.tokens, tile):
            part = {name: array[:, :, start : start + tile] for name, array in held.items()}
            for name, lowered in _lowered_scales(part, codes.bits, bits).items():
                scales[name][:, :, start : start + tile] = lowered
            mx.eval(scales)
        return replace(codes, bits=bits, per_token=_named(_planes(codes)[:bits]) | scales)

    def decode(self, codes: Codes) -> mx.array:
        vectors = _unpack(_planes(codes)) * _scale(codes)
        return rotate_back(vectors, self.seed, self.rotation)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        if self.rounds_queries:
            return _counted(queries, tile) * _scale(tile).swapaxes(-1, -2)
        return queries @ _unpack(_planes(tile)).swapaxes(-1, -2) * _scale(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights * _scale(tile).swapaxes(-1, -2) @ _unpack(_planes(tile))

    def error_bound(self, queries: mx.array, tile: Codes, epsilon: float = EPSILON) -> mx.array:
        """What the errors of full-precision scores stay below, as `scores`, for queries as they
        come, with a probability of at least 1 - 2 exp(-c epsilon^2); at 1.9 some 94 %.

        Raises ValueError unless the option `error_bound` was set.
        """
        if not self.keeps_error:
            raise ValueError("what bounds errors was not kept: set the option 'error_bound'.")
        head_dim = queries.shape[-1]
        norm = mx.sqrt(mx.square(queries).sum(axis=-1, keepdims=True))
        error = tile.per_token["error"].astype(mx.float32).swapaxes(-1, -2)
        return norm * error * (epsilon * sqrt(head_dim / (head_dim - 1)))


def _counted(queries: mx.array, tile: Codes) -> mx.array:
    """<q, v> for queries as `into_basis` rounds them."""
    head_dim = queries.shape[-1] - 2
    rounded, low, step = mx.split(queries, [head_dim, head_dim + 1], axis=-1)
    keys, rounded = _planes(tile), rounded.astype(mx.uint32)
    sums = rounded.sum(axis=-1, keepdims=True)
    by_key = step * dot(pack_planes(rounded, QUERY_BITS), keys) + low * total(keys)[..., None, :]
    return 2 * by_key - ((1 << tile.bits) - 1) * (step * sums + low * head_dim)


def _grid_points(codes: mx.array, bits: int) -> mx.array:
    """v, float32."""
    return codes.astype(mx.float32) * 2 - ((1 << bits) - 1)


@mx.compile
def _unpack(planes: list[mx.array]) -> mx.array:
    """v, float32 [batch, kv_heads, tokens, head_dim]."""
    return _grid_points(unpack_planes(planes), len(planes))


def _best_codes(rotated: mx.array, bits: int) -> mx.array:
    """Codes, uint32, of rotated vectors of mean square one."""
    most = mx.array((1 << (bits - 1)) - 1, mx.float32)
    magnitude = mx.abs(rotated)
    steps, cosine = mx.zeros_like(magnitude), mx.zeros((*magnitude.shape[:-1], 1))
    for rescale in _rescales(bits):
        steps, cosine = _better(magnitude, mx.array(rescale), most, steps, cosine)
    codes = mx.where(rotated >= 0, most + 1 + steps, most - steps)
    return codes.astype(mx.uint32)


def _rescales(bits: int) -> list[float]:
    if bits == 1:
        return []  # signs
    low, high, count = _SWEEP
    typical = _TYPICAL_RESCALE[bits]
    return [typical * (low + (high - low) * i / (count - 1)) for i in range(count)]


@mx.compile
def _better(
    magnitude: mx.array, rescale: mx.array, most: mx.array, steps: mx.array, cosine: mx.array
) -> tuple[mx.array, mx.array]:
    """Steps from the middle of the grid at one rescale, where they point better, and how well."""
    tried = mx.minimum(mx.floor(magnitude * rescale), most)
    middle = tried + 0.5
    along = (middle * magnitude).sum(axis=-1, keepdims=True)
    tried_cosine = along * mx.rsqrt(mx.square(middle).sum(axis=-1, keepdims=True))
    steps = mx.where(tried_cosine > cosine, tried, steps)
    return steps, mx.maximum(tried_cosine, cosine)


def _lowered_scales(held: dict[str, mx.array], bits: int, kept: int) -> dict[str, mx.array]:
    """`scale`, and `error` where it is held, when only the top `kept` bits stay.

    With |k|^2 = <scale v, k>, and k on average along v within a cell: |v|^2 / <v, v'> to one.
    """
    codes = unpack_planes([held[f"plane{i}"] for i in range(bits)])
    old, new = _grid_points(codes, bits), _grid_points(codes >> (bits - kept), kept)
    scale = held["scale"].astype(mx.float32)
    energy = mx.square(old).sum(axis=-1, keepdims=True)
    lowered = scale * (energy / (old * new).sum(axis=-1, keepdims=True))
    scales = {"scale": to_half(lowered, held["scale"].dtype)}
    if "error" in held:
        # The estimate is k and an error at right angles to it, so their squares add up.
        head_dim = codes.shape[-1]
        error = held["error"].astype(mx.float32)
        largest = mx.maximum(lowered, 1e-37)
        square = mx.square(scale / largest) * energy / head_dim - mx.square(error / largest)
        error = mx.square(new).mean(axis=-1, keepdims=True) - square
        error = mx.sqrt(mx.maximum(error, 0)) * lowered
        scales["error"] = to_half(error, held["error"].dtype)
    return scales


def _scale(codes: Codes) -> mx.array:
    return codes.per_token["scale"].astype(mx.float32)


def _planes(codes: Codes) -> list[mx.array]:
    return [codes.per_token[f"plane{i}"] for i in range(codes.bits)]


def _named(planes: Sequence[mx.array]) -> dict[str, mx.array]:
    return {f"plane{i}": plane for i, plane in enumerate(planes)}
