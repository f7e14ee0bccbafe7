"""The rotation that makes every coordinate of a key or a value look like a normal variable.

"hadamard", the default: R x = H (signs * x), random signs, then an orthogonal Hadamard matrix,
where MLX has a symmetric one of that size. There are at most 2^head_dim of these, so R is not
uniform over the rotations, as is sometimes said: a vector along one axis becomes one of equal
magnitudes, whatever the signs. On random vectors the two kinds measure the same. The signs come
before H; after it they would leave the magnitudes of a vector's coordinates as H makes them.

"haar", and where there is no such H: R^T is the Q of a Gaussian matrix, uniform over the rotations.
"""

from functools import cache

import mlx.core as mx
import numpy as np

ROTATIONS = ("hadamard", "haar")


def rotate(x: mx.array, seed: int, kind: str = "hadamard") -> mx.array:
    """R x for x [..., head_dim]."""
    table = rotation_table(x.shape[-1], seed, kind).astype(x.dtype)
    return mx.hadamard_transform(x * table) if table.ndim == 1 else x @ table


def rotate_back(x: mx.array, seed: int, kind: str = "hadamard") -> mx.array:
    """R^T x for x [..., head_dim]."""
    table = rotation_table(x.shape[-1], seed, kind).astype(x.dtype)
    return mx.hadamard_transform(x) * table if table.ndim == 1 else x @ table.T


def rotation_table(head_dim: int, seed: int, kind: str = "hadamard") -> mx.array:
    """Signs [head_dim], or R^T [head_dim, head_dim], float32 and evaluated."""
    return _table(head_dim, seed, kind == "hadamard" and _has_symmetric_hadamard(head_dim))


def check_rotation(kind: str) -> str:
    """`kind`; raises ValueError unless it is one of ROTATIONS."""
    if kind not in ROTATIONS:
        known = " or ".join(map(repr, ROTATIONS))
        raise ValueError(f"option 'rotation' must be {known}, not {kind!r}.")
    return kind


@cache
def _table(head_dim: int, seed: int, signs: bool) -> mx.array:
    random = np.random.default_rng(seed)
    table = random.choice([-1.0, 1.0], head_dim) if signs else haar(head_dim, random)
    table = mx.array(table.astype(np.float32))
    mx.eval(table)  # another thread may read it, and MLX evaluates lazy arrays in their own only
    return table


def haar(size: int, random: np.random.Generator) -> np.ndarray:
    """An orthogonal matrix [size, size], uniform over all of them."""
    q, r = np.linalg.qr(random.standard_normal((size, size)))
    return q * np.sign(np.diag(r))  # without this Q is not uniform


def _has_symmetric_hadamard(head_dim: int) -> bool:
    # mx.hadamard_transform is defined at m * 2^k for m in 1, 12, 20, 28; at 20 and 28 its matrix
    # is not symmetric, and at other sizes it gives NaN instead of an error.
    return any(head_dim % m == 0 and _is_power_of_two(head_dim // m) for m in (1, 12))


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0
