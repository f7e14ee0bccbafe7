"""The rotation that makes every coordinate of a key or a value look like a normal variable.

R x = H (signs * x): random signs, then an orthogonal Hadamard matrix. Where MLX has no symmetric
one of that size, R is a random orthogonal matrix, the Q of a Gaussian matrix.
"""

from functools import cache

import mlx.core as mx
import numpy as np


def rotate(x: mx.array, seed: int) -> mx.array:
    """R x for x [..., head_dim]."""
    table = rotation_table(x.shape[-1], seed).astype(x.dtype)
    return mx.hadamard_transform(x * table) if table.ndim == 1 else x @ table


def rotate_back(x: mx.array, seed: int) -> mx.array:
    """R^T x for x [..., head_dim]."""
    table = rotation_table(x.shape[-1], seed).astype(x.dtype)
    return mx.hadamard_transform(x) * table if table.ndim == 1 else x @ table.T


@cache
def rotation_table(head_dim: int, seed: int) -> mx.array:
    """Signs [head_dim], or R^T [head_dim, head_dim], float32 and evaluated."""
    random = np.random.default_rng(seed)
    if _has_symmetric_hadamard(head_dim):
        table = random.choice([-1.0, 1.0], head_dim)
    else:
        q, r = np.linalg.qr(random.standard_normal((head_dim, head_dim)))
        # The sign of R's diagonal makes Q uniform over the rotations.
        table = q * np.sign(np.diag(r))
    table = mx.array(table.astype(np.float32))
    mx.eval(table)  # another thread may read it, and MLX evaluates lazy arrays in their own only
    return table


def _has_symmetric_hadamard(head_dim: int) -> bool:
    # mx.hadamard_transform is defined at m * 2^k for m in 1, 12, 20, 28; at 20 and 28 its matrix
    # is not symmetric, and at other sizes it gives NaN instead of an error.
    return any(head_dim % m == 0 and _is_power_of_two(head_dim // m) for m in (1, 12))


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0
