"""Tiny random models of the architectures that matter, with packed caches and with their own."""

import copy
import importlib

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kvcore import KVCacheBuilder, KVCacheConfig
from kvcore.attach import layer_reports, unhook
from kvcore.cache import PackedKVCache

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
PRECISE = KVCacheConfig(key_bits=8, value_bits=8, window=32)

# name -> (fields beside SIZES, the kinds of its layers)
MODELS = {
    "llama": ({}, ["packed", "packed"]),
    "qwen3": ({"tie_word_embeddings": True}, ["packed", "packed"]),
    "gemma3_text": (
        {"sliding_window": 32, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64.0},
        ["sliding", "packed"],
    ),
    "gpt_oss": (
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 32,
            "rope_scaling": None,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ["sliding", "packed"],
    ),
    "stablelm": (
        {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "use_qkv_bias": False},
        ["packed", "packed"],
    ),
    "gemma2": (
        {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 64.0,
        },
        ["packed", "packed"],
    ),
    "deepseek_v3": (
        {
            "kv_lora_rank": 32,
            "q_lora_rank": None,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "moe_intermediate_size": 32,
            "n_routed_experts": None,
            "num_key_value_heads": 4,
        },
        ["latent", "latent"],
    ),
}


def tiny(name):
    module = importlib.import_module(f"mlx_lm.models.{name}")
    fields, kinds = MODELS[name]
    sizes = SIZES | {"head_dim": 16} if name == "stablelm" else SIZES
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({"model_type": name, **sizes, **fields}))
    mx.eval(model.parameters())
    return model, kinds


def prompt(tokens=300):
    return mx.array(np.random.default_rng(0).integers(0, 128, tokens))


def logits(model, caches, steps=4):
    """Of the last prompt token and of a few fed after it."""
    tokens = prompt()
    rows = [model(tokens[None, :200], cache=caches)[:, -1]]
    mx.eval([cache.state for cache in caches])
    rows.append(model(tokens[None, 200:], cache=caches)[:, -1])
    for token in range(steps):
        rows.append(model(mx.array([[token]]), cache=caches)[:, -1])
    return mx.concatenate(rows).astype(mx.float32)


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_gives_its_own_logits(name):
    model, kinds = tiny(name)
    want = logits(model, make_prompt_cache(model))
    caches = KVCacheBuilder.for_model(model, PRECISE)
    got = logits(model, caches)
    assert mx.abs(got - want).max().item() < 0.02 * mx.abs(want).max().item()
    reports = layer_reports(caches)
    assert [report.kind for report in reports] == kinds
    assert all(report.nbytes > 0 and report.tokens > 0 for report in reports)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss"])
def test_hooked_models_read_the_codes_directly(name):
    model, _ = tiny(name)
    caches = KVCacheBuilder.for_model(model, PRECISE)
    logits(model, caches)
    packed = [report for report in layer_reports(caches) if report.kind == "packed"]
    assert packed and all(report.reads == "direct" for report in packed)


def test_models_that_compute_on_keys_read_a_copy():
    model, _ = tiny("gemma2")
    caches = KVCacheBuilder.for_model(model, PRECISE)
    logits(model, caches)
    assert {report.reads for report in layer_reports(caches)} == {"transient"}


def test_a_hooked_model_is_unchanged_with_its_own_cache():
    model, _ = tiny("llama")
    want = logits(model, make_prompt_cache(model))
    KVCacheBuilder.for_model(model)
    assert mx.array_equal(logits(model, make_prompt_cache(model)), want)
    hooked = type(model.layers[0].self_attn)
    KVCacheBuilder.for_model(model)
    assert type(model.layers[0].self_attn) is hooked
    unhook(model)
    assert hooked.__mro__[1] is type(model.layers[0].self_attn)


def test_other_instances_are_untouched():
    model, _ = tiny("llama")
    other, _ = tiny("llama")
    KVCacheBuilder.for_model(model)
    assert type(model.layers[0].self_attn) is not type(other.layers[0].self_attn)


def test_mlx_lm_generates_with_the_cache_and_trims_it():
    model, _ = tiny("llama")
    caches = KVCacheBuilder.for_model(model, PRECISE)
    steps = generate_step(prompt(), model, prompt_cache=caches, max_tokens=20)
    first = [token for token, _ in steps]
    assert caches[0].offset == 320
    for cache in caches:
        assert cache.trim(21) == 21
    again = [
        token
        for token, _ in generate_step(prompt()[-1:], model, prompt_cache=caches, max_tokens=20)
    ]
    assert again == first


def test_a_copied_cache_goes_its_own_way():
    model, _ = tiny("llama")
    caches = KVCacheBuilder.for_model(model, PRECISE)
    logits(model, caches)
    copied = copy.deepcopy(caches)
    one = model(mx.array([[1]]), cache=caches)
    other = model(mx.array([[1]]), cache=copied)
    assert mx.array_equal(one, other)
    model(mx.array([[2]]), cache=copied)
    assert copied[0].offset == caches[0].offset + 1


def test_entries_inside_a_cache_list_are_packed():
    from mlx_lm.models.cache import ArraysCache, CacheList

    from kvcore.builder import replace_plain

    caches = [CacheList(ArraysCache(2), KVCache())]
    (entry,) = replace_plain(caches, lambda layer, _: PackedKVCache(PRECISE, layer))
    assert type(entry[0]) is ArraysCache and type(entry[1]) is PackedKVCache
