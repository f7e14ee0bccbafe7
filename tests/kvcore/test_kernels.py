"""Every kernel against the same function in MLX operations."""

import mlx.core as mx
import numpy as np
import pytest

from kvcore.attention import PartMask, PlainPart, absorb, empty_partial
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.codes import BLOCK
from kvcore.segment import Segment
from kvcore.view import PackedPart

cpu = pytest.importorskip("kvcore.kernels.cpu", reason="numba is there on Linux only")

LADDER = ((8, 8), (7, 6), (6, 4), (5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2), (1, 1))


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def compare(kernel, oracle):
    got, want = kernel.weighted / kernel.total, oracle.weighted / oracle.total
    assert mx.isfinite(got).all().item()
    assert mx.abs(got - want).max().item() <= 2e-3 * mx.abs(want).max().item()
    lse = kernel.maximum + mx.log(kernel.total)
    assert mx.allclose(lse, oracle.maximum + mx.log(oracle.total), rtol=1e-3, atol=1e-3)


def packed(tokens, bits, head_dim=64, seed=0, transform=lambda x: x):
    fine = (max(bits[0], 6), max(bits[1], 6))
    codecs = (TurboQuantMSE(fine[0], True, False), TurboQuantMSE(fine[1], False, True))
    whole = -(-tokens // BLOCK) * BLOCK
    sides = [
        codec.encode(transform(normal(1, 2, whole, head_dim, seed=seed + i)), width).cut(tokens)
        for i, (codec, width) in enumerate(zip(codecs, bits, strict=True))
    ]
    return Segment(*sides), codecs, fine


def check(segment, codecs, fine, queries):
    kernel = cpu.attend_packed(queries, segment.keys, segment.values, *fine)
    oracle = absorb(empty_partial(queries), queries, PackedPart(segment, *codecs), PartMask(1))
    compare(kernel, oracle)


@pytest.mark.parametrize("bits", LADDER)
def test_every_width(bits):
    check(*packed(300, bits), normal(1, 2, 3, 64, seed=5))


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 127, 128, 1025, 2500])
def test_every_length(tokens):
    check(*packed(tokens, (6, 4)), normal(1, 2, 3, 64, seed=5))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_every_shape(head_dim, group):
    check(*packed(200, (4, 3), head_dim), normal(1, 2, group, head_dim, seed=5) * head_dim**-0.5)


@pytest.mark.parametrize(
    "transform",
    [lambda x: x * 1e4, lambda x: x * 1e-6, lambda x: x * 0, lambda x: mx.ones_like(x)],
)
def test_extreme_vectors(transform):
    check(*packed(200, (6, 4), transform=transform), normal(1, 2, 3, 64, seed=5) * 1e-3)


def test_one_giant_score():
    segment, codecs, fine = packed(300, (6, 4))
    key = codecs[0].decode(segment.keys)[:, :, 77:78]
    check(segment, codecs, fine, codecs[0].into_basis(mx.repeat(key, 3, axis=2)) * 10)


@pytest.mark.parametrize("tokens", [1, 127, 260])
@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e4, 0.0])
def test_plain_halves(tokens, factor):
    keys, values = ((normal(2, 2, 300, 64, seed=i) * factor).astype(mx.float16) for i in (0, 1))
    queries = normal(2, 2, 3, 64, seed=2) * (1e-4 if factor == 1e4 else 1.0)
    part = PlainPart(keys[:, :, :tokens], values[:, :, :tokens])
    oracle = absorb(empty_partial(queries), queries, part, PartMask(1))
    compare(cpu.attend_plain(queries, keys, values, tokens), oracle)
