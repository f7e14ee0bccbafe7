import mlx.core as mx
import numpy as np
import pytest

from kvcore.codebooks import centroid, codebook, quantise

# Lloyd-Max MSE of N(0, 1), and what the top bits of the 6-bit code reach.
BEST = {1: 0.3633802, 2: 0.1174818, 3: 0.0345478, 4: 0.0095010, 5: 0.0025047, 6: 0.0006442}
NESTED_LOSS = {1: 1.000, 2: 1.047, 3: 1.035, 4: 1.016, 5: 1.004, 6: 1.0}


def mse(book):
    edges = np.concatenate([[-np.inf], book.thresholds, [np.inf]])
    grid = np.linspace(-8, 8, 400_001)
    density = np.exp(-grid * grid / 2) / np.sqrt(2 * np.pi)
    cell = np.clip(np.searchsorted(edges, grid, side="right") - 1, 0, len(book.centroids) - 1)
    return np.trapezoid((grid - book.centroids[cell]) ** 2 * density, grid)


@pytest.mark.parametrize("bits", BEST)
def test_the_best_codebook_of_each_width_is_found(bits):
    assert mse(codebook(bits, bits)) == pytest.approx(BEST[bits], rel=1e-3)


@pytest.mark.parametrize("bits", BEST)
def test_the_top_bits_of_a_code_are_nearly_the_best_code(bits):
    assert mse(codebook(6, bits)) <= BEST[bits] * NESTED_LOSS[bits] * 1.001


@pytest.mark.parametrize("fine", range(1, 9))
def test_arithmetic_gives_the_centroids_back(fine):
    for bits in range(1, fine + 1):
        book = codebook(fine, bits)
        got = np.array(centroid(mx.arange(1 << bits), book))
        step = np.diff(book.centroids).min() if bits > 1 else 1.0
        assert np.abs(got - book.centroids)[1:-1].max(initial=0) < 0.75 * step
        assert np.all(np.diff(got) > 0)


@pytest.mark.parametrize(("fine", "bits"), [(6, 6), (6, 4), (4, 4), (3, 1), (8, 8)])
def test_a_code_counts_the_thresholds_below(fine, bits):
    x = np.random.default_rng(bits).standard_normal((7, 96)).astype(np.float32)
    book = codebook(fine, bits)
    assert np.array_equal(
        np.array(quantise(mx.array(x), book)), np.searchsorted(book.thresholds, x)
    )


def test_top_bits_are_the_coarser_code():
    x = mx.array(np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    fine = np.array(quantise(x, codebook(6, 6)))
    for bits in range(1, 6):
        assert np.array_equal(fine >> (6 - bits), np.array(quantise(x, codebook(6, bits))))


@pytest.mark.parametrize(("fine", "bits"), [(0, 0), (4, 5), (9, 9), (3, 0)])
def test_impossible_widths_are_refused(fine, bits):
    with pytest.raises(ValueError, match="bits"):
        codebook(fine, bits)
