"""Bits by layer from a probe, on a tiny model one of whose layers matters more."""

import copy
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from kvcore import KVCacheBuilder, KVCacheConfig, storage
from kvcore.artefact import ArtefactError, save
from kvcore.attach import layer_reports
from kvcore.bench import kinds
from kvcore.cache import PackedKVCache
from kvcore.probing import probe
from kvcore.sensitivity import Sensitivity, allotted, artefact_of, from_arrays, to_arrays

TOKENS = np.random.default_rng(1).integers(0, 128, 800).tolist()
CONFIG = KVCacheConfig(window=32)
ERRORS = {bits: 4.0**-bits for bits in range(1, 7)}


@pytest.fixture(scope="module")
def model():
    mx.random.seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    rest = {"rms_norm_eps": 1e-5, "vocab_size": 128, "max_position_embeddings": 4096}
    made = llama.Model(llama.ModelArgs(model_type="llama", **sizes, **heads, **rest))
    attention = [layer.self_attn for layer in made.model.layers]
    # The first says almost nothing, the last much, and it looks closely.
    attention[0].o_proj.weight = attention[0].o_proj.weight * 0.01
    attention[2].q_proj.weight = attention[2].q_proj.weight * 8
    attention[2].o_proj.weight = attention[2].o_proj.weight * 8
    return made


@pytest.fixture(scope="module")
def found(model):
    return probe(model, TOKENS, CONFIG, context=400, windows=2)


@pytest.fixture
def folder(model, found, tmp_path):
    save(tmp_path / "s", artefact_of("tiny", model, CONFIG, 800, 400), to_arrays(found))
    return str(tmp_path / "s")


def measured(effects):
    """Keys and values of as many layers as there are pairs of effects."""
    return [
        Sensitivity(layer, side, None, 2, 64, 2, effect, ERRORS)
        for layer, pair in enumerate(effects)
        for side, effect in zip(("keys", "values"), pair, strict=True)
    ]


def bits_of(configs):
    return [(config.key_bits, config.value_bits) for config in configs]


def test_the_probe_finds_the_layers_that_matter(found):
    effects = {(one.layer, one.side): one.effect for one in found}
    assert list(effects) == [(layer, side) for layer in range(3) for side in ("keys", "values")]
    for side in ("keys", "values"):
        assert effects[0, side] < effects[1, side] / 10
        assert effects[1, side] < effects[2, side]
    # Two bits have the error of Lloyd-Max codes of two bits.
    assert found[0].errors[2] == pytest.approx(0.117, rel=0.1)
    assert sorted(found[0].errors) == [1, 2, 3, 4, 5, 6]


def test_heads_are_probed_apart(model):
    calls = []
    found = probe(model, TOKENS, CONFIG, 400, 1, by_head=True, report=lambda *at: calls.append(at))
    assert [(one.layer, one.side, one.head) for one in found[:4]] == [
        (0, "keys", 0),
        (0, "keys", 1),
        (0, "values", 0),
        (0, "values", 1),
    ]
    assert calls[0] == (0, 12) and calls[-1] == (12, 12)


def test_the_budget_counts_scales_and_means():
    # A key of 64 channels has 16 bits of scale and a 128th of its block's mean, a value the scale.
    overhead = (16 / 64 + 16 / 128 + 16 / 64) / 2
    found = measured([(1, 1), (1, 1)])
    exact = replace(CONFIG, sensitivity="anywhere", mean_bits=3 + overhead)
    assert bits_of(allotted(exact, found)) == [(3, 3), (3, 3)]
    in_bytes = replace(exact, mean_bits=None, token_budget=(3 + overhead) / 8 * 512)
    assert bits_of(allotted(in_bytes, found)) == [(3, 3), (3, 3)]
    less = replace(exact, mean_bits=2.99 + overhead)
    assert sum(map(sum, bits_of(allotted(less, found)))) == 11
    sixteen_times = measured([(1, 1), (16, 16)])
    assert bits_of(allotted(exact, sixteen_times)) == [(2, 2), (4, 4)]


def test_a_budget_below_the_fewest_bits_is_refused():
    config = replace(CONFIG, sensitivity="anywhere", mean_bits=1.0)
    with pytest.raises(ValueError, match="bytes a token are too few"):
        allotted(config, measured([(1, 1)]))


def test_arrays_hold_what_was_found():
    found = measured([(0.25, 0.5)])
    one_width = [replace(found[0], head=1, errors={4: 0.5}, bits=4), *found]
    assert from_arrays(to_arrays(one_width)) == one_width


def test_each_layer_of_a_model_has_its_own_bits(model, folder, tmp_path):
    config = replace(CONFIG, sensitivity=folder, mean_bits=3.3125)
    caches = KVCacheBuilder.for_model(model, config)
    bits = [(report.key_bits or 0, report.value_bits or 0) for report in layer_reports(caches)]
    assert sum(map(sum, bits)) == 3 * 6
    assert sum(bits[2]) > sum(bits[1]) > sum(bits[0])

    model(mx.array([TOKENS[:400]]), cache=caches)
    mx.eval([cache.state for cache in caches])
    for cache, (key_bits, value_bits) in zip(caches, bits, strict=True):
        segment = cache.body[0]
        assert (segment.keys.bits, segment.values.bits) == (key_bits, value_bits)
    token = [cache.token_nbytes for cache in caches]
    assert sum(token) == pytest.approx(3.3125 / 8 * 3 * 2 * 2 * 64, abs=3)

    storage.save(tmp_path / "chat.safetensors", caches)
    loaded, _ = storage.load(tmp_path / "chat.safetensors")
    copied = copy.deepcopy(caches)
    last = mx.array([TOKENS[400:410]])
    logits = [model(last, cache=of) for of in (caches, loaded, copied)]
    assert mx.allclose(logits[0], logits[1], atol=1e-5)
    assert mx.allclose(logits[0], logits[2], atol=1e-5)

    before = [cache.nbytes for cache in loaded]
    freed = [cache.lower(2, 2) for cache in loaded]
    lowered = [(cache.key_bits, cache.value_bits) for cache in loaded]
    assert lowered == [(min(keys, 2), min(values, 2)) for keys, values in bits]
    assert [b - cache.nbytes for b, cache in zip(before, loaded, strict=True)] == freed
    assert freed[2] > 0


def test_a_sensitivity_of_other_methods_or_another_model_is_refused(model, folder):
    other = KVCacheConfig(method="kivi", sensitivity=folder, mean_bits=3)
    with pytest.raises(ArtefactError, match=r"measured with turboquant_mse .* not kivi"):
        KVCacheBuilder.for_model(model, other)
    shallower = copy.deepcopy(model)
    shallower.args = replace(model.args, num_hidden_layers=2)
    with pytest.raises(ArtefactError, match="this is another model"):
        KVCacheBuilder.for_model(shallower, replace(CONFIG, sensitivity=folder, mean_bits=3))


def test_a_measurement_names_the_cache(model, folder):
    config = replace(CONFIG, window=128, sensitivity=folder, mean_bits=3.3)
    named = kinds.parse(f"ratequant:{folder}:3.3")(model)
    assert [cache.config for cache in named] == [
        cache.config for cache in KVCacheBuilder.for_model(model, config)
    ]
    for wrong in ("ratequant:3.3", f"ratequant:{folder}", f"ratequant:{folder}:few"):
        with pytest.raises(ValueError, match="is no cache"):
            kinds.parse(wrong)
    with pytest.raises(ArtefactError, match="there is no artefact"):
        kinds.parse(f"ratequant:{folder}/none:3.3")


def test_each_head_of_a_model_has_its_own_bits(model, tmp_path):
    # The second head of each layer matters 16 times as much as the first.
    found = [
        replace(one, head=head, effect=one.effect * 16**head)
        for one in measured([(1, 1), (4, 4), (1, 4)])
        for head in (0, 1)
    ]
    config = replace(CONFIG, sensitivity="anywhere", mean_bits=3.3125)
    configs = allotted(config, found)
    heads = [(c.key_head_bits, c.value_head_bits) for c in configs]
    assert all(other == one + 2 for both in heads for one, other in both)
    assert sum(bits for both in heads for of_side in both for bits in of_side) == 3 * 2 * 2 * 3
    KVCacheBuilder.for_model(model, CONFIG)
    caches = [PackedKVCache(own, layer) for layer, own in enumerate(configs)]
    model(mx.array([TOKENS[:400]]), cache=caches)
    token = sum(cache.token_nbytes or 0 for cache in caches)
    assert token == pytest.approx(3.3125 / 8 * 3 * 2 * 2 * 64, abs=3)

    storage.save(tmp_path / "chat.safetensors", caches)
    loaded, _ = storage.load(tmp_path / "chat.safetensors")
    assert [(c.config.key_head_bits, c.config.value_head_bits) for c in loaded] == heads
    last = mx.array([TOKENS[400:410]])
    assert mx.allclose(model(last, cache=caches), model(last, cache=loaded), atol=1e-5)
    before = sum(cache.nbytes for cache in loaded)
    assert sum(cache.lower(2, 2) for cache in loaded) == before - sum(c.nbytes for c in loaded) > 0
    assert loaded[0].trim(150) == 150


def test_heads_that_cannot_have_bits_are_refused():
    for bits in (0, 9):
        with pytest.raises(ValueError, match=f"key_head_bits must be .* 1 to 8, not {bits}"):
            KVCacheConfig(key_head_bits=(3, bits))
    with pytest.raises(ValueError, match="learnt of all heads together"):
        KVCacheConfig(method="spectral", artefact="anywhere", key_head_bits=(3, 2))


@pytest.mark.parametrize(
    "fields",
    [
        {"mean_bits": 3.0},
        {"sensitivity": "x"},
        {"sensitivity": "x", "mean_bits": 3.0, "token_budget": 9.0},
    ],
)
def test_a_sensitivity_and_one_budget_belong_together(fields):
    with pytest.raises(ValueError, match="sensitivity needs a budget"):
        KVCacheConfig(**fields)


def test_a_text_that_leaves_nothing_to_pack_is_refused(model):
    with pytest.raises(ValueError, match="at least 292 are needed"):
        probe(model, TOKENS[:291], CONFIG)
    with pytest.raises(ValueError, match="one width"):
        probe(model, TOKENS, KVCacheConfig(method="fp16"))
