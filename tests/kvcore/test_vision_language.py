"""A vision-language model in mlx-vlm's structure, which mlx-vlm itself is too large to bring here.

Like its Gemma 3: an outer module with a vision tower that calls mx.fast's attention, and a language
model that makes its own caches, of mlx-vlm's classes and not mlx-lm's.
"""

import sys
import types

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import cache as mlx_lm_cache
from mlx_lm.models import gemma3_text

from kvcore import KVCacheBuilder, KVCacheConfig
from kvcore.attach import layer_reports

HIDDEN, PATCHES, IMAGE = 64, 4, 127


def copied(cls):
    """What mlx-vlm has of mlx-lm's cache classes: the same code in a class of its own."""
    return type(cls.__name__, cls.__bases__, dict(vars(cls)) | {"__module__": MODULE})


MODULE = "mlx_vlm.models.cache"


class VisionTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, HIDDEN)

    def __call__(self, patches):
        x = self.embed(patches)[:, None]
        return mx.fast.scaled_dot_product_attention(x, x, x, scale=HIDDEN**-0.5)[:, 0]


class LanguageModel(nn.Module):
    def __init__(self, classes):
        super().__init__()
        sizes = gemma3_text.ModelArgs(
            model_type="gemma3_text",
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=128,
            sliding_window=64,
            sliding_window_pattern=2,
            query_pre_attn_scalar=64,
        )
        self.model = gemma3_text.Model(sizes)
        self._classes = classes

    @property
    def layers(self):
        return self.model.layers

    def make_cache(self):
        sliding, plain = self._classes.RotatingKVCache, self._classes.KVCache
        return [sliding(max_size=64, keep=0), plain()]

    def __call__(self, inputs, cache=None, inputs_embeds=None):
        return self.model(inputs, cache=cache, input_embeddings=inputs_embeds)


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.vision_tower = VisionTower()
        self.language_model = LanguageModel(classes)

    @property
    def layers(self):
        return self.language_model.layers

    def embed(self, inputs, patches):
        text = self.language_model.model.model.embed_tokens(inputs)
        seen = self.vision_tower(patches)
        return mx.concatenate([text[:, :2], seen, text[:, 2 + PATCHES :]], axis=1)


@pytest.fixture
def model(monkeypatch):
    classes = types.ModuleType(MODULE)
    for name in ("KVCache", "RotatingKVCache"):
        setattr(classes, name, copied(getattr(mlx_lm_cache, name)))
    monkeypatch.setitem(sys.modules, MODULE, classes)
    mx.random.seed(0)
    return Model(classes)


def logits(model, caches):
    """After a prompt with a picture of four patches, and after each of three tokens more."""
    rng = np.random.default_rng(0)
    inputs = mx.array([[1, 2, *[IMAGE] * PATCHES, *rng.integers(0, 120, 500).tolist()]])
    patches = mx.array(rng.standard_normal((1, PATCHES, 48)).astype(np.float32))
    read = model.language_model
    steps = [read(inputs, cache=caches, inputs_embeds=model.embed(inputs, patches))]
    mx.eval([cache.state for cache in caches])
    steps += [read(mx.array([[token]]), cache=caches) for token in (3, 5, 7)]
    return mx.concatenate([step[:, -1] for step in steps])


def test_the_language_models_plain_caches_are_packed_and_read_from_the_codes(model):
    want = logits(model, model.language_model.make_cache())
    caches = KVCacheBuilder.for_model(model, KVCacheConfig(key_bits=8, value_bits=8, window=32))
    got = logits(model, caches)
    reports = layer_reports(caches)
    assert [report.kind for report in reports] == ["sliding", "packed"]
    assert reports[1].reads == "direct"
    assert reports[1].nbytes < 0.75 * reports[1].half_nbytes
    error = (mx.square(got - want).sum() / mx.square(want).sum()).item()
    assert 0 < error < 1e-4


def test_caches_left_to_the_model_are_reported_by_kind(model):
    caches = model.language_model.make_cache()
    logits(model, caches)
    assert [report.kind for report in layer_reports(caches)] == ["sliding", "full"]
