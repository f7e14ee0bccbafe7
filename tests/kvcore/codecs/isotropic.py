"""What a codec does to unit vectors of no preferred direction, beside rows of a reference table."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

HEAD_DIM = 128


@dataclass(frozen=True)
class Row:
    """`mse`: E |x - x'|^2. `cosine`: of x and x'. `variance`: head_dim times that of <y, x'> -
    <y, x> for independent unit y. `slope`: <y, x'> / <y, x> where the latter is .5."""

    mse: float
    cosine: float
    variance: float
    slope: float


def measured(codec, bits, tokens=10 * 1024, seed=0):
    rng = np.random.default_rng(seed)
    x, other = (_unit(rng.standard_normal((1, 1, tokens, HEAD_DIM))) for _ in range(2))
    across = _unit(other - (other * x).sum(-1, keepdims=True) * x)
    correlated = 0.5 * x + np.sqrt(0.75) * across
    codes = codec.encode(mx.array(x.astype(np.float32)), bits, 0)
    y = np.array(codec.decode(codes)).astype(np.float64)
    return Row(
        mse=np.square(x - y).sum(-1).mean(),
        cosine=((x * y).sum(-1) / np.linalg.norm(y, axis=-1)).mean(),
        variance=HEAD_DIM * (other * (y - x)).sum(-1).var(),
        slope=(correlated * y).sum(-1).mean() / 0.5,
    )


def assert_near(row, reference):
    assert row.mse == pytest.approx(reference.mse, rel=0.01)
    assert row.cosine == pytest.approx(reference.cosine, abs=0.001)
    assert row.variance == pytest.approx(reference.variance, rel=0.05)
    assert row.slope == pytest.approx(reference.slope, abs=0.01)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
