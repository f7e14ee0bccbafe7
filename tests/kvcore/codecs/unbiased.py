"""Methods whose error depends on their seed: figures and averages over many."""

from dataclasses import astuple

import mlx.core as mx
import numpy as np
from isotropic import Row, measured

from kvcore.codecs import Side, make_codec

TOKENS = 128


def measured_over_seeds(method, bits, options, seeds=range(32)):
    """A sketch of 128 independent rows is longer or shorter as a whole by half a per cent."""
    rows = []
    for seed in seeds:
        codec = make_codec(method, Side("keys", bits, seed, options))
        rows.append(astuple(measured(codec, bits, tokens=384, seed=seed)))
    return Row(*np.mean(rows, axis=0))


def slopes(method, bits, options, head_dim, seeds=range(40)):
    """<q, k'> of each of 128 keys k for one query with <q, k> = 1, for each seed: [seeds, 128]."""
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((TOKENS, head_dim))
    keys[0, :] = 0
    keys[0, 3] = 1.0  # along an axis, where no random vector lies
    query = rng.standard_normal(head_dim)
    query[3] = 6.0
    shares = keys @ query
    keys, shares = keys[np.abs(shares) > 4], shares[np.abs(shares) > 4]
    keys = np.resize(keys / shares[:, None], (TOKENS, head_dim))
    queries = mx.array(query.astype(np.float32))[None, None, None]
    x = mx.array(keys.astype(np.float32))[None, None]
    result = []
    for seed in seeds:
        codec = make_codec(method, Side("keys", bits, seed, options))
        result.append(np.array(codec.scores(codec.into_basis(queries), codec.encode(x, bits, 0))))
    return np.stack(result).reshape(len(result), TOKENS)


def assert_unbiased(method, bits, options, head_dim=64):
    """Each key's mean over the seeds is 1 within its own standard error, as a normal variable."""
    scores = slopes(method, bits, options, head_dim)
    error = scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
    away = (scores.mean(axis=0) - 1) / error
    assert np.abs(away).max() < 4.5
    of_seeds = scores.mean(axis=1)
    assert abs(of_seeds.mean() - 1) < 4 * of_seeds.std(ddof=1) / np.sqrt(len(scores))
