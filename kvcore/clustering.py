"""k-means, for codebooks that are learnt."""

import mlx.core as mx
import numpy as np

DISTANCES = 1 << 22
"""Distances alive at a time."""


def k_means(points: mx.array, clusters: int, steps: int, seed: int) -> mx.array:
    """Centroids, float32 [clusters, dimensions], of points [n, dimensions], by Lloyd's iteration.

    A cluster that runs empty takes up a random point. What is not finite is left out; points that
    are too few stand several times.
    """
    random = np.random.default_rng(seed)
    points = mx.array(_finite(np.array(points.astype(mx.float32))))
    first = random.permutation(len(points))
    centroids = points[mx.array(np.resize(first, clusters))]
    for _ in range(steps):
        index = nearest(points, centroids)
        sums = mx.zeros_like(centroids).at[index].add(points)
        counts = mx.zeros((clusters, 1)).at[index].add(mx.ones((len(points), 1)))
        others = points[mx.array(random.integers(len(points), size=clusters))]
        centroids = mx.where(counts > 0, sums / mx.maximum(counts, 1), others)
        mx.eval(centroids)
    return centroids


def nearest(points: mx.array, centroids: mx.array) -> mx.array:
    """Index, uint32 [n], of the centroid [clusters, dimensions] nearest to each point
    [n, dimensions]."""
    half_norms = 0.5 * (centroids * centroids).sum(axis=-1)
    rows = max(1, DISTANCES // len(centroids))
    parts = []
    for start in range(0, len(points), rows):
        part = points[start : start + rows]
        if parts:
            # Else MLX may compute many parts' distances before it takes the first's minimum.
            part = mx.depends(part, parts[-1])
        parts.append(mx.argmax(part @ centroids.T - half_norms, axis=-1))
    return mx.concatenate(parts)


def _finite(points: np.ndarray) -> np.ndarray:
    return points[np.isfinite(points).all(axis=-1)]
