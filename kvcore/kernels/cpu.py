"""Decode attention on the CPU: loops compiled by numba over the packed codes themselves.

Reads numpy views of the arrays, so it evaluates what it is given. One query token at a time; all
query heads of a group share each decoded key and value. Every width runs through one compiled
function, kept on disk, so that no `lower` ever waits for a compiler.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from numba import float32, int64, njit, uint8, uint16, uint32, void

from kvcore.attention import LOWEST, Partial
from kvcore.bitplanes import GROUP, field_widths
from kvcore.codebooks import codebook
from kvcore.codecs.turboquant_mse import fields_of
from kvcore.codes import BLOCK, Codes

SPLIT_TOKENS = 8 * BLOCK
"""Tokens that one thread takes at a time; there are often fewer heads than cores."""
THREADED_TOKENS = 2048
"""From here on a thread saves more than it costs to wake."""

_NONE = {dtype: np.zeros((1, 1, 1), dtype) for dtype in (np.uint8, np.uint16, np.uint32)}
_LOWEST = np.float32(LOWEST)


def attend_packed(
    queries: mx.array, keys: Codes, values: Codes, key_fine: int, value_fine: int
) -> Partial:
    """Attention of one query token over packed tokens, in the codec's basis.

    `queries`: float32 [batch, kv_heads, group, head_dim], scaled and rotated. `key_fine`,
    `value_fine`: bits of the codebooks that the codes are nested in.
    """
    batch, kv_heads, group, head_dim = queries.shape
    mx.eval(queries, keys.arrays(), values.arrays())
    heads, splits = batch * kv_heads, -(-keys.tokens // SPLIT_TOKENS)
    partial = _Buffers(heads, splits, group, fields_of(values)[0].shape[-1] * GROUP)
    mean = keys.per_block.get("mean")
    arguments: tuple[Any, ...] = (
        np.asarray(queries).reshape(-1, group, head_dim),
        keys.tokens,
        *_fields(keys),
        _flat(keys.per_token["scale"], np.uint16),
        _NONE[np.uint16] if mean is None else _flat(mean, np.uint16),
        mean is not None,
        codebook(key_fine, keys.bits).centroids.astype(np.float32),
        *_fields(values),
        _flat(values.per_token["scale"], np.uint16),
        codebook(value_fine, values.bits).centroids.astype(np.float32),
        *partial,
    )
    if keys.tokens < THREADED_TOKENS:
        _attend_packed(0, heads * splits, *arguments)
    else:
        _share(heads * splits, lambda first, last: _attend_packed(first, last, *arguments))
    return partial.merged((batch, kv_heads, group))


def attend_plain(queries: mx.array, keys: mx.array, values: mx.array, tokens: int) -> Partial:
    """The same over the first `tokens` of fp16 keys and values [batch, kv_heads, n, head_dim]."""
    batch, kv_heads, group, head_dim = queries.shape
    mx.eval(queries, keys, values)
    partial = _Buffers(batch * kv_heads, 1, group, values.shape[-1])
    _attend_plain(
        np.asarray(queries).reshape(-1, group, head_dim),
        tokens,
        _flat(keys, np.uint16),
        _flat(values, np.uint16),
        *partial,
    )
    return partial.merged((batch, kv_heads, group))


def _share(tasks: int, run: Callable[[int, int], None]) -> None:
    """run(first, last) over parts of range(tasks), on as many threads as there are cores.

    Plain threads: they sleep between calls, where OpenMP's would spin against the BLAS's own.
    """
    pool, threads = _pool()
    bounds = [tasks * i // threads for i in range(threads + 1)]
    others = [pool.submit(run, *bounds[i : i + 2]) for i in range(1, threads)]
    run(bounds[0], bounds[1])
    wait(others)
    for other in others:
        other.result()


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return ThreadPoolExecutor(max(1, threads - 1), "attention"), threads


class _Buffers(tuple[np.ndarray, np.ndarray, np.ndarray]):
    """m, l [heads, splits, group] and a [heads, splits, group, head_dim] of kvcore.attention."""

    def __new__(cls, heads: int, splits: int, group: int, head_dim: int):
        shape = (heads, splits, group)
        sizes = (shape, shape, (*shape, head_dim))
        return super().__new__(cls, [np.empty(size, np.float32) for size in sizes])

    def merged(self, shape: tuple[int, int, int]) -> Partial:
        maximum, total, weighted = self
        highest = maximum.max(axis=1, keepdims=True)
        shrink = np.exp(maximum - highest)
        return Partial(
            mx.array(highest.reshape(*shape, 1)),
            mx.array((total * shrink).sum(axis=1).reshape(*shape, 1)),
            mx.array((weighted * shrink[..., None]).sum(axis=1).reshape(*shape, -1)),
        )


def _flat(x: mx.array, dtype: type) -> np.ndarray:
    """[batch, kv_heads, n, m] as a view [batch * kv_heads, n, m], its bits read as `dtype`."""
    view = np.ascontiguousarray(np.asarray(x)).view(dtype)
    return view.reshape(view.shape[0] * view.shape[1], *view.shape[2:])  # -1 needs an element


def _fields(codes: Codes) -> tuple:
    """Width of the high field, the field as its type's argument, how many low fields, and those."""
    width = field_widths(codes.bits)[0]
    high = [_NONE[dtype] for dtype in (np.uint8, np.uint16, np.uint32)]
    index = {1: 0, 2: 1, 4: 2}[width]
    high[index] = _flat(fields_of(codes)[0], high[index].dtype.type)
    low = [_flat(field, np.uint8) for field in fields_of(codes)[1:]]
    return width, *high, len(low), *(low + [_NONE[np.uint8]] * (4 - len(low)))


_U8, _U16, _U32 = uint8[:, :, ::1], uint16[:, :, ::1], uint32[:, :, ::1]
_FIELDS = (int64, _U8, _U16, _U32, int64, _U8, _U8, _U8, _U8)
_PARTIAL = (float32[:, :, ::1], float32[:, :, ::1], float32[:, :, :, ::1])


@njit(inline="always")
def _halves(source, into, as_float):
    """fp16 given as bits -> float32; `as_float` views `into`, uint32, and holds the result."""
    for i in range(source.size):
        bits = uint32(source[i])
        into[i] = ((bits & uint32(0x8000)) << uint32(16)) | ((bits & uint32(0x7FFF)) << uint32(13))
    for i in range(source.size):
        as_float[i] *= float32(2.0**112)


@njit(inline="always")
def _decode(
    width, high8, high16, high32, lows, low0, low1, low2, low3, head, token, table, row
):  # fmt: skip
    """The centroids of one vector, into `row`."""
    one = uint32(1)
    for group in range(row.size // GROUP):
        at = group * GROUP
        if width == 4:
            word = high32[head, token, group]
            if lows == 0:
                for i in range(GROUP):
                    row[at + i] = table[(word >> uint32(4 * i)) & uint32(15)]
            elif lows == 1:
                a = uint32(low0[head, token, group])
                for i in range(GROUP):
                    code = ((word >> uint32(4 * i)) & uint32(15)) << one
                    row[at + i] = table[code | ((a >> uint32(i)) & one)]
            elif lows == 2:
                a = uint32(low0[head, token, group])
                b = uint32(low1[head, token, group])
                for i in range(GROUP):
                    code = ((word >> uint32(4 * i)) & uint32(15)) << uint32(2)
                    code |= ((a >> uint32(i)) & one) << one
                    row[at + i] = table[code | ((b >> uint32(i)) & one)]
            else:
                a = uint32(low0[head, token, group])
                b = uint32(low1[head, token, group])
                c = uint32(low2[head, token, group])
                d = uint32(low3[head, token, group]) if lows == 4 else uint32(0)
                for i in range(GROUP):
                    code = ((word >> uint32(4 * i)) & uint32(15)) << uint32(3)
                    code |= ((a >> uint32(i)) & one) << uint32(2)
                    code |= ((b >> uint32(i)) & one) << one
                    code |= (c >> uint32(i)) & one
                    if lows == 4:
                        code = (code << one) | ((d >> uint32(i)) & one)
                    row[at + i] = table[code]
        elif width == 2:
            word = uint32(high16[head, token, group])
            if lows == 0:
                for i in range(GROUP):
                    row[at + i] = table[(word >> uint32(2 * i)) & uint32(3)]
            else:
                a = uint32(low0[head, token, group])
                for i in range(GROUP):
                    code = ((word >> uint32(2 * i)) & uint32(3)) << one
                    row[at + i] = table[code | ((a >> uint32(i)) & one)]
        else:
            word = uint32(high8[head, token, group])
            for i in range(GROUP):
                row[at + i] = table[(word >> uint32(i)) & one]


@njit(inline="always")
def _soften(scores, tokens, group, maximum, total, weighted):
    """Online softmax over one block: scores [group, tokens] become weights, the rest follows."""
    for g in range(group):
        highest = maximum[g]
        for t in range(tokens):
            highest = max(highest, scores[g, t])
        shrink = np.exp(maximum[g] - highest)
        maximum[g] = highest
        added = float32(0)
        for t in range(tokens):
            scores[g, t] = np.exp(scores[g, t] - highest)
            added += scores[g, t]
        total[g] = total[g] * shrink + added
        for i in range(weighted.shape[1]):
            weighted[g, i] *= shrink


@njit(
    void(
        int64, int64, float32[:, :, ::1], int64, *_FIELDS, _U16, _U16, int64, float32[::1],
        *_FIELDS, _U16, float32[::1], *_PARTIAL,
    ),
    nogil=True, fastmath=True, cache=True,
)  # fmt: skip
def _attend_packed(
    first, last, queries, tokens,
    k_width, k8, k16, k32, k_lows, k0, k1, k2, k3, key_scale, key_mean, has_mean, key_table,
    v_width, v8, v16, v32, v_lows, v0, v1, v2, v3, value_scale, value_table,
    maximum, total, weighted,
):  # fmt: skip
    _, group, head_dim = queries.shape
    splits = maximum.shape[1]
    value_dim = weighted.shape[3]
    for task in range(first, last):
        head, split = task // splits, task % splits
        key, value = np.empty(head_dim, np.float32), np.empty(value_dim, np.float32)
        scores = np.empty((group, BLOCK), np.float32)
        of_mean = np.zeros(group, np.float32)
        mean_bits, scale_bits = np.empty(head_dim, np.uint32), np.empty(BLOCK, np.uint32)
        mean, scale = mean_bits.view(np.float32), scale_bits.view(np.float32)
        m, l_, a = maximum[head, split], total[head, split], weighted[head, split]
        m[:], l_[:], a[:] = _LOWEST, 0, 0
        query = queries[head]
        end = min((split + 1) * SPLIT_TOKENS, tokens)
        for start in range(split * SPLIT_TOKENS, end, BLOCK):
            count = min(BLOCK, end - start)
            if has_mean:
                _halves(key_mean[head, start // BLOCK], mean_bits, mean)
                for g in range(group):
                    dot = float32(0)
                    for i in range(head_dim):
                        dot += query[g, i] * mean[i]
                    of_mean[g] = dot
            _halves(key_scale[head, start : start + count, 0], scale_bits, scale)
            for t in range(count):
                _decode(
                    k_width, k8, k16, k32, k_lows, k0, k1, k2, k3, head, start + t, key_table, key
                )
                for g in range(group):
                    dot = float32(0)
                    for i in range(head_dim):
                        dot += query[g, i] * key[i]
                    scores[g, t] = dot * scale[t] + of_mean[g]
            _soften(scores, count, group, m, l_, a)
            _halves(value_scale[head, start : start + count, 0], scale_bits, scale)
            for t in range(count):
                at = start + t
                _decode(v_width, v8, v16, v32, v_lows, v0, v1, v2, v3, head, at, value_table, value)
                for g in range(group):
                    weight = scores[g, t] * scale[t]
                    for i in range(value_dim):
                        a[g, i] += weight * value[i]


@njit(
    void(float32[:, :, ::1], int64, _U16, _U16, *_PARTIAL),
    nogil=True, fastmath=True, cache=True,
)  # fmt: skip
def _attend_plain(queries, tokens, keys, values, maximum, total, weighted):
    heads, group, head_dim = queries.shape
    value_dim = values.shape[2]
    for head in range(heads):
        scores = np.empty((group, BLOCK), np.float32)
        key_bits, value_bits = np.empty(head_dim, np.uint32), np.empty(value_dim, np.uint32)
        key, value = key_bits.view(np.float32), value_bits.view(np.float32)
        m, l_, a = maximum[head, 0], total[head, 0], weighted[head, 0]
        m[:], l_[:], a[:] = _LOWEST, 0, 0
        for start in range(0, tokens, BLOCK):
            count = min(BLOCK, tokens - start)
            for t in range(count):
                _halves(keys[head, start + t], key_bits, key)
                for g in range(group):
                    dot = float32(0)
                    for i in range(head_dim):
                        dot += queries[head, g, i] * key[i]
                    scores[g, t] = dot
            _soften(scores, count, group, m, l_, a)
            for t in range(count):
                _halves(values[head, start + t], value_bits, value)
                for g in range(group):
                    for i in range(value_dim):
                        a[g, i] += scores[g, t] * value[i]
