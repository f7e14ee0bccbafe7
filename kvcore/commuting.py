"""Codebooks that commute with the rotary embedding, and their training (CommVQ, arXiv 2506.18879).

In pairs of channels, read as complex numbers, the embedding multiplies by e^(i angle). A codebook
of 64 complex rows theta stands for 64 * 64 centroids theta_A + i theta_B: whatever multiplies each
pair by a complex number commutes with the embedding.

The training is EM: each vector is shared out among the centroids by how near they are, less and
less softly, and theta is the weighted least-squares solution. A few steps are within some per cent
of the error that the paper's hundred reach. Both steps use the structure: a
distance is a term of A, one of B and one of the two, and the normal equations are 64 by 64.
"""

import mlx.core as mx
import numpy as np

ROWS = 64
INDEX_BITS = 12
TEMPERATURES = (0.05, 0.01)
"""Of the mean squared length, in steps while vectors are shared out; then the nearest gets all."""
HARD_STEPS = 5
_DISTANCES = 1 << 22
"""Distances alive at a time."""


def train(vectors: mx.array, seed: int) -> mx.array:
    """theta, float32 [heads, 64, 2 pairs] (real parts, then imaginary), of vectors
    [heads, n, 2 pairs]."""
    count = vectors.shape[1]
    random = np.random.default_rng(seed)
    chosen = mx.array(np.resize(random.permutation(count), ROWS))
    # A sum of two random rows is then about as long as a vector.
    theta = vectors[:, chosen] * 0.5**0.5
    energy = (vectors * vectors).sum(axis=-1).mean(axis=-1)[:, None, None]
    for temperature in (*TEMPERATURES, *[None] * HARD_STEPS):
        soft = None if temperature is None else temperature * energy
        of_a, of_b, joint = _shares(vectors, theta, soft)
        theta = _least_squares(vectors, of_a, of_b, joint, theta)
        mx.eval(theta)
    return theta


def nearest_pair(vectors: mx.array, theta: mx.array) -> mx.array:
    """64 A + B, uint32 [heads, n], of the centroid nearest to each vector [heads, n, 2 pairs]."""
    heads, count, _ = vectors.shape
    rows = max(1, _DISTANCES // (heads * ROWS * ROWS))
    parts: list[mx.array] = []
    for start in range(0, count, rows):
        part = vectors[:, start : start + rows]
        if parts:
            # Else MLX may compute many parts' distances before it takes the first's minimum.
            part = mx.depends(part, parts[-1])
        parts.append(mx.argmax(_nearness(part, theta), axis=-1))
    return mx.concatenate(parts, axis=1)


def times_i(vectors: mx.array) -> mx.array:
    """i times vectors [..., 2 pairs]."""
    real, imaginary = mx.split(vectors, 2, axis=-1)
    return mx.concatenate([-imaginary, real], axis=-1)


def _nearness(vectors: mx.array, theta: mx.array) -> mx.array:
    """Half the squared length less half the squared distance, [heads, n, 64 * 64]."""
    turned = times_i(theta)
    norms = 0.5 * (theta * theta).sum(axis=-1)
    of_a = vectors @ theta.swapaxes(-1, -2) - norms[:, None]
    of_b = vectors @ turned.swapaxes(-1, -2) - norms[:, None]
    of_both = theta @ turned.swapaxes(-1, -2)
    near = of_a[..., None] + of_b[..., None, :] - of_both[:, None]
    return near.reshape(*vectors.shape[:2], -1)


def _shares(
    vectors: mx.array, theta: mx.array, temperature: mx.array | None
) -> tuple[mx.array, mx.array, mx.array]:
    """How much of each vector goes to each A and to each B, [heads, n, 64] both, and how much of
    all to each pair of them, [heads, 64, 64]; without a temperature all to the nearest."""
    heads, count, _ = vectors.shape
    rows = max(1, _DISTANCES // (heads * ROWS * ROWS))
    of_a, of_b = [], []
    joint = mx.zeros((heads, ROWS, ROWS))
    for start in range(0, count, rows):
        near = _nearness(vectors[:, start : start + rows], theta)
        if temperature is not None:
            share = mx.softmax(near / temperature, axis=-1).reshape(heads, -1, ROWS, ROWS)
            of_a.append(share.sum(axis=-1))
            of_b.append(share.sum(axis=-2))
            joint = joint + share.sum(axis=1)
        else:
            index = mx.argmax(near, axis=-1)[..., None]
            of_a.append((index // ROWS == mx.arange(ROWS)).astype(mx.float32))
            of_b.append((index % ROWS == mx.arange(ROWS)).astype(mx.float32))
            joint = joint + of_a[-1].swapaxes(-1, -2) @ of_b[-1]
        mx.eval(of_a[-1], of_b[-1], joint)
    return mx.concatenate(of_a, axis=1), mx.concatenate(of_b, axis=1), joint


def _least_squares(
    vectors: mx.array, of_a: mx.array, of_b: mx.array, joint: mx.array, theta: mx.array
) -> mx.array:
    """The theta that minimises the shared-out squared distances.

    Setting the derivative by the conjugate of theta_c to zero gives
    (n_A + n_B + i (N - N^T)) theta = sum_A k - i sum_B k, with N the joint shares and n its sums.
    """
    sums = of_a.swapaxes(-1, -2) @ vectors - of_b.swapaxes(-1, -2) @ times_i(vectors)
    pairs = vectors.shape[-1] // 2
    solved = []
    for head in range(len(sums)):
        right, shares = np.array(sums[head]), np.array(joint[head]).astype(np.float64)
        old = np.array(theta[head])
        counts = np.diag(shares.sum(axis=1) + shares.sum(axis=0))
        left = counts + 1j * (shares - shares.T)
        # A row that nothing is shared to stays where it is, and so does what is undetermined.
        ridge = 1e-3 * max(1.0, counts.mean())
        right = right[:, :pairs] + 1j * right[:, pairs:]
        old = old[:, :pairs] + 1j * old[:, pairs:]
        new = np.linalg.solve(left + ridge * np.eye(ROWS), right + ridge * old)
        solved.append(np.hstack([new.real, new.imag]))
    return mx.array(np.stack(solved).astype(np.float32))
