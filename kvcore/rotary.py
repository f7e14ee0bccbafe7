"""A rotary embedding as pairs of channels, each turned by its own frequency (arXiv 2104.09864)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

SHIFTS = 128
"""Positions that moments are spread over."""


@dataclass(frozen=True)
class Rotary:
    """`order`: channels, int32 [head_dim]; those at i and at i + head_dim / 2 are a pair, which
    position t turns by t * `frequencies`[i], radians, float32 [head_dim / 2]."""

    order: mx.array
    frequencies: mx.array

    def paired(self, vectors: mx.array) -> mx.array:
        """Vectors [..., head_dim] with their channels in the order of the pairs."""
        return mx.take(vectors, self.order, axis=-1)

    def unpaired(self, vectors: mx.array) -> mx.array:
        """The channels of `paired` vectors in the model's order."""
        return mx.take(vectors, mx.argsort(self.order), axis=-1)

    def turn(self, paired: mx.array, start: int) -> mx.array:
        """Paired vectors [..., tokens, head_dim], the first at position `start`, turned."""
        return self._turned(paired, start, 1)

    def turn_back(self, paired: mx.array, start: int) -> mx.array:
        return self._turned(paired, start, -1)

    def spread(self, moments: np.ndarray, reach: int) -> np.ndarray:
        """What the second moments [..., head_dim, head_dim] of turned vectors become when these are
        moved to positions all over the first `reach`."""
        axes = self.paired(mx.eye(len(self.order)))[:, None]
        total = np.zeros_like(moments)
        shifts = np.random.default_rng(0).integers(reach, size=SHIFTS)
        for shift in shifts:
            turned = self.unpaired(self.turn(axes, int(shift)))[:, 0]
            images = np.array(turned).astype(moments.dtype)
            total += images.T @ moments @ images
        return total / SHIFTS

    def _turned(self, paired: mx.array, start: int, way: int) -> mx.array:
        positions = mx.arange(start, start + paired.shape[-2]).astype(mx.float32)
        angles = positions[:, None] * self.frequencies
        cosines, sines = mx.cos(angles), way * mx.sin(angles)
        first, second = mx.split(paired, 2, axis=-1)
        return mx.concatenate(
            [first * cosines - second * sines, first * sines + second * cosines], axis=-1
        )


def read_rotary(rope: Callable[..., Any], head_dim: int) -> Rotary:
    """What the model's embedding `rope(vectors, offset=)` does, read off its images of the axes.

    Channels that it leaves alone are paired with each other, at frequency zero. A factor that it
    scales vectors by is not kept.
    """
    axes = mx.eye(head_dim)[:, None, None, :]
    images = np.array(rope(axes, offset=1).astype(mx.float32)).reshape(head_dim, head_dim)
    pairs, alone = [], []
    for channel in range(head_dim):
        others = np.abs(images[channel])
        others[channel] = 0
        partner = int(others.argmax())
        if others[partner] == 0:
            alone.append(channel)
        elif channel < partner:
            sine, cosine = images[channel, partner], images[channel, channel]
            pairs.append((channel, partner, np.arctan2(sine, cosine)))
    pairs += [(*pair, 0.0) for pair in zip(alone[::2], alone[1::2], strict=True)]
    first, second, frequencies = zip(*pairs, strict=True)
    rotary = Rotary(
        mx.array(np.array(first + second, np.int32)),
        mx.array(np.array(frequencies, np.float32)),
    )
    mx.eval(rotary.order, rotary.frequencies)
    return rotary
