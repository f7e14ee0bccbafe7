import mlx.core as mx
import numpy as np
import pytest

from kvcore.density_codebooks import lloyd_max_of, quantise_by

GRID = np.linspace(-20, 20, 80_001)
NORMAL = np.exp(-GRID * GRID / 2)
LAPLACIAN = np.exp(-np.sqrt(2) * np.abs(GRID))


@pytest.mark.parametrize(
    ("bits", "distortion"), [(1, 0.3633802), (2, 0.1174818), (3, 0.0345478), (4, 0.0095010)]
)
def test_the_normal_book_is_the_known_one(bits, distortion):
    assert lloyd_max_of(GRID, NORMAL, bits).distortion(1) == pytest.approx(distortion, rel=2e-4)


@pytest.mark.parametrize(
    ("bits", "distortion", "centroids"),
    [
        (1, 0.5, (0.707107,)),
        (2, 0.1761949, (0.419756, 1.833969)),
        (3, 0.0544760, (0.233401, 0.832962, 1.672473, 3.086687)),
    ],
)
def test_the_laplacian_book_is_the_known_one(bits, distortion, centroids):
    book = lloyd_max_of(GRID, LAPLACIAN, bits)
    assert book.distortion(1) == pytest.approx(distortion, rel=1e-4)
    assert book.centroids[len(book.centroids) // 2 :] == pytest.approx(centroids, abs=2e-4)


def test_merged_cells_have_the_means_of_both():
    book = lloyd_max_of(GRID, NORMAL, 4)
    assert book.merged(0) == book
    assert book.merged(1).centroids[4:] == pytest.approx((0.2553, 0.7887, 1.4060, 2.2354), abs=1e-4)
    assert book.merged(2).centroids[2:] == pytest.approx((0.4968, 1.6052), abs=1e-4)
    assert book.merged(2).distortion(1) == pytest.approx(1.024 * 0.1174818, rel=1e-3)


def test_top_bits_of_a_code_are_a_code_of_the_merged_book():
    book = lloyd_max_of(GRID, NORMAL, 4)
    x = mx.array(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    codes = quantise_by(book.thresholds, x)
    assert mx.array_equal(codes >> 2, quantise_by(book.merged(2).thresholds, x))
