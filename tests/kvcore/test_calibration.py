"""A tiny model reads a text, methods learn from it, and caches are packed by what they learnt."""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from kvcore import artefact
from kvcore.artefact import ArtefactError
from kvcore.builder import KVCacheBuilder
from kvcore.cache import PackedKVCache
from kvcore.calibration import calibrate
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig
from kvcore.listening import SINKS, listen

CONTEXT = 4 + 2 * BLOCK
TOKENS = 3 * CONTEXT


def tiny_model(seed=0, **changes):
    sizes = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "vocab_size": 64,
    }
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict(sizes | changes))
    for layer in model.layers:
        # Sharper attention than fresh weights have, and norms that tell models apart.
        layer.self_attn.q_proj.weight = 6 * layer.self_attn.q_proj.weight
        layer.self_attn.k_proj.weight = 6 * layer.self_attn.k_proj.weight
        layer.input_layernorm.weight = mx.random.uniform(0.5, 1.5, (sizes["hidden_size"],))
    mx.eval(model.parameters())
    return model


def text(tokens=TOKENS, seed=0):
    return np.random.default_rng(seed).integers(0, 64, tokens).tolist()


def config(folder, method="spectral", **fields):
    return KVCacheConfig(method=method, artefact=str(folder), **({"key_bits": 2} | fields))


def test_the_sample_is_what_the_model_s_own_cache_holds():
    model, tokens = tiny_model(), text()
    said = []
    samples = listen(model, tokens, CONTEXT, TOKENS, lambda *at: said.append(at))
    assert said[-1] == (TOKENS, TOKENS) and said == sorted(said)
    caches = make_prompt_cache(model)
    model(mx.array([tokens[CONTEXT : 2 * CONTEXT]]), cache=caches)
    for sample, cache in zip(samples, caches, strict=True):
        assert sample.starts == 3 * (SINKS, SINKS + BLOCK)
        keys, values = (held[:, :, : cache.offset] for held in cache.state[:2])
        second = slice(2 * BLOCK, 4 * BLOCK)
        assert mx.allclose(sample.keys[:, second], keys[0, :, SINKS:], atol=1e-4)
        assert mx.allclose(sample.values[:, second], values[0, :, SINKS:], atol=1e-4)
        # The embedding undone: the first layer's keys are the same token's at any position.
        assert sample.query_moment.shape == (2, 32, 32)
    first = samples[0]
    unturned = first.unturned_keys(first.rotary)
    body = [t for at in range(0, TOKENS, CONTEXT) for t in tokens[at + SINKS : at + CONTEXT]]
    same = [i for i, token in enumerate(body) if token == body[0]]
    assert len(same) > 5
    for i in same:
        assert mx.allclose(unturned[:, i], unturned[:, same[0]], atol=1e-3)


def test_queries_are_heard_in_all_blocks_and_vectors_kept_of_few():
    model, tokens = tiny_model(), text()
    (few, _), (all_of_it, _) = (listen(model, tokens, CONTEXT, kept) for kept in (BLOCK, TOKENS))
    assert few.keys.shape[1] == BLOCK and all_of_it.keys.shape[1] == 6 * BLOCK
    assert mx.array_equal(few.query_moment, all_of_it.query_moment)


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=r"100 tokens, read 2,048 at a time; at least 516"):
        listen(tiny_model(), text(100))
    with pytest.raises(ValueError, match="needs no calibration"):
        calibrate(tiny_model(), "tiny", text(), KVCacheConfig())


@pytest.fixture(scope="module")
def spectral(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artefact") / "spectral"
    made = calibrate(tiny_model(), "tiny", text(), config(folder), CONTEXT)
    artefact.save(folder, *made)
    return folder


def test_an_artefact_says_what_it_is(spectral):
    record = json.loads((spectral / "artefact.json").read_text())
    assert {name: record[name] for name in ("model", "method", "key_bits", "value_bits")} == {
        "model": "tiny",
        "method": "spectral",
        "key_bits": 2,
        "value_bits": 4,
    }
    assert record["tokens"] == TOKENS and record["context"] == CONTEXT
    assert (record["dtype"], record["seed"], record["version"]) == ("float32", 0, artefact.VERSION)


def test_it_fits_the_model_in_another_dtype_and_no_other_model(spectral):
    half = tiny_model()
    half.set_dtype(mx.bfloat16)
    for model in (tiny_model(), half):
        assert len(KVCacheBuilder.for_model(model, config(spectral))) == 2
    for other in (tiny_model(seed=1), tiny_model(num_hidden_layers=3), tiny_model(head_dim=64)):
        with pytest.raises(ArtefactError, match="made from tiny, and this is another model"):
            KVCacheBuilder.for_model(other, config(spectral))


def copied(folder, to):
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_wrong_or_damaged_artefact_is_refused(spectral, tmp_path):
    def refused(folder, sentence, layer=0, **fields):
        with pytest.raises(ArtefactError, match=sentence):
            PackedKVCache(config(folder, **fields), layer)

    refused(tmp_path / "none", "there is no artefact in")
    refused(spectral, "has nothing for the keys of layer 2", layer=2)
    refused(spectral, "with conditioning 'block_mean', not 'none'", conditioning="none")
    refused(spectral, "calibrated with seed 0, not 5", seed=5)
    refused(spectral, "holds what spectral learnt, and vecinfer packs the keys", method="vecinfer")
    folder = copied(spectral, tmp_path / "damaged")
    content = bytearray((folder / "arrays.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "arrays.safetensors").write_bytes(content)
    refused(folder, "is damaged: calibrate again")
    (folder / "arrays.safetensors").unlink()
    refused(folder, "cannot be read")
    (folder / "artefact.json").write_text("{")
    refused(folder, "cannot be read")
    record = json.loads((spectral / "artefact.json").read_text())
    (folder / "artefact.json").write_text(json.dumps(record | {"version": 99}))
    refused(folder, "is not of version 1")
    del record["digest"]
    (folder / "artefact.json").write_text(json.dumps(record))
    refused(folder, "lacks 'digest'")


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtefactError, match="holds other files"):
        artefact.check_folder(tmp_path)
    with pytest.raises(ArtefactError, match="is a file"):
        artefact.check_folder(tmp_path / "thesis.txt")


def test_without_an_artefact_a_method_that_learns_is_refused():
    for method in ("spectral", "vecinfer", "comm_vq"):
        with pytest.raises(ValueError, match="needs an artefact"):
            KVCacheConfig(method=method)


@pytest.mark.parametrize(
    ("method", "bits", "limit"),
    [
        ("spectral", 3, 0.05),
        ("vecinfer", 4, 0.12),
        ("comm_vq", 4, 0.05),
    ],
)
def test_at_four_times_the_length_it_is_as_good(method, bits, limit, tmp_path, monkeypatch):
    monkeypatch.setattr("kvcore.codecs.vecinfer.STEPS", {8: 8})
    monkeypatch.setattr("kvcore.commuting.TEMPERATURES", ())
    model = tiny_model()
    own = config(tmp_path, method, key_bits=bits, value_method="turboquant_mse", window=0)
    artefact.save(tmp_path, *calibrate(model, "tiny", text(), own, CONTEXT))
    reference = make_prompt_cache(model)
    model(mx.array([text(SINKS + 8 * BLOCK, seed=1)]), cache=reference)
    for packed, plain in zip(KVCacheBuilder.for_model(model, own), reference, strict=True):
        # The true keys, so that no error of an earlier layer counts.
        want = plain.state[0][:, :, SINKS : plain.offset]
        got = packed.key_codec.decode(packed.key_codec.encode(want, bits, SINKS))
        errors = [
            (mx.square(g - w).sum() / mx.square(w).sum()).item()
            for g, w in zip(mx.split(got, 4, axis=2), mx.split(want, 4, axis=2), strict=True)
        ]
        assert max(errors) < limit
        assert errors[-1] < 1.3 * errors[0]
