"""A vector's length beside its direction, such that none overflows and none spoils another."""

import mlx.core as mx

_LARGEST = {
    mx.float16: 65504.0,
    mx.bfloat16: 3.3895313892515355e38,
    mx.float32: 3.4028234663852886e38,
}


def normalised(vectors: mx.array) -> tuple[mx.array, mx.array]:
    """The vectors at a mean square of one, float32, and the root mean square of each, [..., 1].

    A root mean square overflows nowhere that the vector itself did not. A vector that is not finite
    becomes zero, as a whole: kept, its score would be NaN, and so would the softmax of them all.
    """
    vectors = vectors.astype(mx.float32)
    finite = mx.isfinite(vectors).all(axis=-1, keepdims=True)
    vectors = mx.where(finite, vectors, 0)
    # Squares of bfloat16's extremes are beyond float32.
    largest = mx.maximum(mx.abs(vectors).max(axis=-1, keepdims=True), 1e-37)
    vectors = vectors / largest
    deviation = mx.sqrt(mx.square(vectors).mean(axis=-1, keepdims=True))
    return vectors / mx.maximum(deviation, 1e-20), deviation * largest


def half_of(vectors: mx.array) -> mx.Dtype:
    """The half precision that keeps the vectors' range."""
    return mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16


def to_half(x: mx.array, half: mx.Dtype) -> mx.array:
    """What is beyond the largest number of `half` becomes that."""
    return mx.clip(x, -_LARGEST[half], _LARGEST[half]).astype(half)
