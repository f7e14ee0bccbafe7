import mlx.core as mx
import numpy as np
import pytest
from learning import normal, relative_error

from kvcore.codecs import Side
from kvcore.codecs.spectral import learn, make, water_filled
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.codes import BLOCK
from kvcore.layer_sample import LayerSample

HEAD_DIM = 64


def ar1(correlation):
    return correlation ** np.abs(np.subtract.outer(np.arange(HEAD_DIM), np.arange(HEAD_DIM)))


def spiked():
    variance = np.ones(HEAD_DIM)
    variance[:32] = 16
    basis = np.linalg.qr(np.random.default_rng(3).standard_normal((HEAD_DIM, HEAD_DIM)))[0]
    return basis * variance @ basis.T


def drawn(covariance, tokens, seed):
    x = np.random.default_rng(seed).standard_normal((1, tokens, HEAD_DIM))
    return mx.array((x @ np.linalg.cholesky(covariance).T).astype(np.float32))


def learnt_from(covariance, side="values", moment=None, bits=4):
    vectors = drawn(covariance, 64 * BLOCK, 1)
    moment = mx.eye(HEAD_DIM)[None] if moment is None else mx.array(moment.astype(np.float32))[None]
    sample = LayerSample(vectors, vectors, (0,) * 64, moment)
    return learn(Side(side, bits), sample)


def codec_from(covariance, side="values", moment=None, bits=4):
    return make(Side(side, bits, learnt=learnt_from(covariance, side, moment, bits)))


def test_the_basis_is_orthonormal_and_its_inverse_undoes_it():
    for moment in (None, ar1(0.9)):
        learnt = learnt_from(spiked(), "keys", moment)
        encode, decode = np.array(learnt["encode"][0]), np.array(learnt["decode"][0])
        assert np.allclose(encode @ decode, np.eye(HEAD_DIM), atol=1e-3)
        scaled = np.linalg.norm(encode, axis=0)
        if moment is None:
            # Mixtures of eight principal components at unit variance each.
            groups = encode.reshape(HEAD_DIM, -1, 8)
            for other in range(1, groups.shape[1]):
                assert np.allclose(groups[:, 0].T @ groups[:, other], 0, atol=1e-2 * scaled.max())


def test_water_filling_by_hand():
    # 16 times the variance is two bits more; what is below the water gets nothing.
    assert np.bincount(water_filled(np.array([16.0, 1.0]), 2)).tolist() == [3, 1]
    assert np.bincount(water_filled(np.array([256.0, 1e-4]), 2), minlength=2).tolist() == [4, 0]
    assert water_filled(np.array([16.0, 1.0]), 1) == (0, 0)
    assert np.bincount(water_filled(np.array([1e9, 1.0]), 8)).tolist() == [8, 8]
    whole = water_filled(np.geomspace(1, 1e-3, 8), 5)
    for bits in (1, 2, 3, 4):
        assert whole[: 8 * bits] == water_filled(np.geomspace(1, 1e-3, 8), bits)


@pytest.mark.parametrize(
    "covariance", [ar1(0.9), ar1(0.7), spiked()], ids=["ar1 .9", ".7", "spiked"]
)
def test_it_gains_what_transform_coding_gains(covariance):
    """Arithmetic over geometric mean of the variances, against a random rotation at 4 bits, in
    groups of eight dimensions and whole bits."""
    x = drawn(covariance, 32 * BLOCK, 2)[None]
    codec, rotated = codec_from(covariance), TurboQuantMSE(4, False, True)
    gain = relative_error(rotated.decode(rotated.encode(x, 4)), x) / relative_error(
        codec.decode(codec.encode(x, 4)), x
    )
    variance = np.linalg.eigvalsh(covariance)
    of_groups = variance.reshape(-1, 8).mean(axis=-1)
    expected = variance.mean() / np.exp(np.log(of_groups).mean())
    assert gain == pytest.approx(expected, rel=0.1)


def test_on_isotropic_vectors_it_gains_nothing():
    x = normal(1, 1, 32 * BLOCK, HEAD_DIM, seed=2)
    codec, rotated = codec_from(np.eye(HEAD_DIM)), TurboQuantMSE(4, False, True)
    error = relative_error(codec.decode(codec.encode(x, 4)), x)
    assert error == pytest.approx(relative_error(rotated.decode(rotated.encode(x, 4)), x), rel=0.05)


def test_bits_go_where_queries_look():
    moment = np.diag(np.where(np.arange(HEAD_DIM) < 16, 100.0, 0.01))
    x = normal(1, 1, 16 * BLOCK, HEAD_DIM, seed=2)
    queries = normal(1, 1, 50, HEAD_DIM, seed=4) * mx.array(np.sqrt(np.diag(moment)), mx.float32)
    aware, blind = (
        codec_from(np.eye(HEAD_DIM), "keys", which, 2) for which in (moment, np.eye(HEAD_DIM))
    )

    def error(codec):
        scores = codec.scores(codec.into_basis(queries), codec.encode(x, 2))
        return relative_error(scores, queries @ x.swapaxes(-1, -2))

    assert error(aware) < 0.05 * error(blind)


def test_heads_share_no_order_but_the_bytes():
    one, other = drawn(ar1(0.98), 16 * BLOCK, 1), drawn(ar1(0.2), 16 * BLOCK, 1)
    both = mx.concatenate([one, other])
    sample = LayerSample(both, both, (0,) * 16, mx.broadcast_to(mx.eye(64), (2, 64, 64)))
    codec = make(Side("values", 2, learnt=learn(Side("values", 2), sample)))
    depths = [np.bincount(order, minlength=8) for order in codec.orders]
    assert depths[0].sum() == depths[1].sum() == 16
    assert depths[0].max() > depths[1].max() and depths[0].min() == 0
    codes = codec.encode(both[None], 2)
    assert codes.per_token["bytes"].shape == (1, 2, 16 * BLOCK, 16)
    errors = [relative_error(codec.decode(codes)[0, h], both[h]) for h in (0, 1)]
    assert errors[0] < 0.01 < errors[1] < 0.14
