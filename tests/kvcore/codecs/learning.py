"""Samples to learn from, and codecs that have learnt from them."""

from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from kvcore import commuting
from kvcore.codecs import Side, comm_vq, spectral, vecinfer
from kvcore.codes import BLOCK
from kvcore.layer_sample import LayerSample
from kvcore.rotary import read_rotary

MODULES = {"spectral": spectral, "vecinfer": vecinfer, "comm_vq": comm_vq}
HEADS = 2


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


def rope(head_dim):
    return nn.RoPE(head_dim)


def structured(tokens, head_dim, start=0, seed=1):
    """Keys [1, HEADS, tokens, head_dim] as models have them: few strong directions and a large
    mean, then the rotary embedding."""
    fixed = np.random.default_rng(7)
    spectrum = np.exp(-np.arange(head_dim) / (head_dim / 8))
    bases = np.stack(
        [np.linalg.qr(fixed.standard_normal((head_dim,) * 2))[0] for _ in range(HEADS)]
    )
    mean = 2 * fixed.standard_normal((HEADS, 1, head_dim)) * np.sqrt(spectrum.mean())
    random = np.random.default_rng(seed)
    keys = random.standard_normal((HEADS, tokens, head_dim)) * np.sqrt(spectrum) @ bases + mean
    return rope(head_dim)(mx.array(keys.astype(np.float32))[None], offset=start)


@cache
def sample(head_dim, blocks=8):
    keys = structured(blocks * BLOCK, head_dim)[0]
    values = normal(HEADS, blocks * BLOCK, head_dim, seed=2)
    queries = normal(HEADS, 400, head_dim, seed=3)
    return LayerSample(
        keys,
        values,
        tuple(range(0, blocks * BLOCK, BLOCK)),
        queries.swapaxes(-1, -2) @ queries / 400,
        read_rotary(rope(head_dim), head_dim),
    )


@cache
def learnt(method, side, bits, head_dim):
    """By few steps from few vectors: what the codebooks are worth is tested apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commuting, "TEMPERATURES", ())
        patch.setattr(commuting, "HARD_STEPS", 2)
        patch.setattr(vecinfer, "STEPS", {8: 5, 12: 1})
        few = sample(head_dim, 2 if method == "comm_vq" else 8)
        return MODULES[method].learn(Side(side, bits, 3), few)


def codec_of(method, side="keys", bits=2, head_dim=64):
    arrays = learnt(method, side, bits, head_dim)
    return MODULES[method].make(Side(side, bits, 3, learnt=arrays))
