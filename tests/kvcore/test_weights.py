import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from kvcore.weights import RotatedLinear, quantise_weights

# Squared error over squared norm of the Lloyd-Max codebook on N(0, 1).
NORMAL_MSE = {2: 0.11748, 3: 0.034548, 4: 0.009501, 5: 0.002505, 6: 0.000644, 7: 1.64e-4, 8: 4.1e-5}


def normal(*shape, seed=0, scale=0.02):
    return mx.array((scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


def tiny_llama(seed=0):
    mx.random.seed(seed)
    sizes = llama.ModelArgs(
        model_type="llama",
        hidden_size=96,
        num_hidden_layers=2,
        intermediate_size=192,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=128,
        tie_word_embeddings=False,
    )
    return llama.Model(sizes)


@pytest.mark.parametrize("bits", NORMAL_MSE)
def test_the_error_is_the_codebooks(bits):
    weight = normal(256, 1024)
    error = relative_error(RotatedLinear(weight, bits).weight, weight)
    assert error == pytest.approx(NORMAL_MSE[bits], rel=0.03)


@pytest.mark.parametrize(
    ("in_features", "block"), [(32, 32), (576, 64), (96, 32), (1536, 512), (4096, 1024)]
)
def test_blocks_of_a_power_of_two_tile_the_features(in_features, block):
    weight, x = normal(40, in_features), normal(3, in_features, seed=1, scale=1)
    layer = RotatedLinear(weight, 8)
    assert layer.scale.shape == (40, in_features // block)
    assert relative_error(layer(x), x @ weight.T) < 1e-4


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_product_is_that_of_the_weight_it_stands_for(bits, dtype):
    layer = RotatedLinear(normal(80, 576), bits, bias=normal(80, seed=2).astype(dtype))
    x = normal(2, 5, 576, seed=1, scale=1).astype(dtype)
    got = layer(x)
    assert got.dtype == dtype
    want = x.astype(mx.float32) @ layer.weight.T + layer.bias
    tolerance = {mx.float32: 1e-5, mx.float16: 1e-2, mx.bfloat16: 5e-2}[dtype]
    assert mx.allclose(got.astype(mx.float32), want, atol=tolerance)


def test_many_tiles_give_what_one_does_in_bounded_memory(monkeypatch):
    weight, x = normal(2048, 512), normal(3, 512, seed=1, scale=1)
    one = RotatedLinear(weight, 4)
    want = one(x)
    mx.eval(want)
    monkeypatch.setattr("kvcore.weights.TILE_ELEMENTS", 32 * 512)
    layer = RotatedLinear(weight, 4)
    mx.eval(layer.parameters())
    parameters = dict(tree_flatten(layer.parameters()))
    assert all(mx.array_equal(x, parameters[n]) for n, x in tree_flatten(one.parameters()))
    mx.clear_cache()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    got = layer(x)
    mx.eval(got)
    assert mx.get_peak_memory() - held < weight.nbytes / 8
    assert mx.allclose(got, want, atol=1e-5)


def test_bytes_are_the_codes_the_scales_and_the_bias():
    assert RotatedLinear(normal(80, 576), 4).nbytes == 80 * (576 // 2 + 9 * 2)
    assert RotatedLinear(normal(80, 2048), 3, bias=mx.zeros(80)).nbytes == 80 * (768 + 2 * 2 + 4)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("in_features", [576, 1024])
def test_less_error_than_mlx_at_equal_bytes(bits, in_features):
    weight = normal(256, in_features).astype(mx.float16)
    ours, theirs = RotatedLinear(weight, bits), mx.quantize(weight, 64, bits)
    full = weight.astype(mx.float32)
    error = relative_error(ours.weight, full)
    affine = relative_error(mx.dequantize(*theirs, 64, bits).astype(mx.float32), full)
    bits_less = 8 * (sum(x.nbytes for x in theirs) - ours.nbytes) / weight.size
    assert bits_less >= 0.25
    assert error * 4**-bits_less < affine
    if bits < 4:
        assert error < affine


def test_heavy_tails_are_no_worse_than_normal_weights():
    weight = mx.array(np.random.default_rng(0).standard_t(3, (128, 1024)).astype(np.float16))
    full = weight.astype(mx.float32)
    affine = mx.dequantize(*mx.quantize(weight, 64, 4), 64, 4).astype(mx.float32)
    error = relative_error(RotatedLinear(weight, 4).weight, full)
    assert error < 1.1 * NORMAL_MSE[4]
    assert error < relative_error(affine, full) / 1.5


def test_zero_rows_stay_zero():
    weight = np.array(normal(8, 64))
    weight[3] = 0
    layer = RotatedLinear(mx.array(weight), 2)
    assert mx.abs(layer.weight[3]).max().item() == 0
    assert mx.isfinite(layer.weight).all().item()


def test_a_model_is_packed_where_the_predicate_holds_and_still_speaks():
    model, tokens = tiny_llama(), mx.array([[3, 1, 4, 1, 5, 9]])
    want = model(tokens)
    quantise_weights(model, 8, lambda path, _: "lm_head" not in path)
    kinds = {path: type(m) for path, m in model.named_modules()}
    assert kinds["lm_head"] is nn.Linear
    assert kinds["model.embed_tokens"] is nn.Embedding
    packed = [path for path, kind in kinds.items() if kind is RotatedLinear]
    assert len(packed) == 2 * 7
    assert relative_error(model(tokens), want) < 1e-3
    assert not any("weight" in path for path in _packed_parameters(model))
    nn.quantize(model, 32, 4)  # what is left, the embedding and lm_head
    assert mx.isfinite(model(tokens)).all().item()


def _packed_parameters(model):
    linear = (m for _, m in model.named_modules() if isinstance(m, RotatedLinear))
    return [path for layer in linear for path, _ in tree_flatten(layer.parameters())]


def test_what_was_saved_loads_into_a_fresh_model(tmp_path):
    model, tokens = tiny_llama(), mx.array([[3, 1, 4, 1, 5, 9]])
    quantise_weights(model, 3)
    model.save_weights(str(tmp_path / "packed.safetensors"))
    fresh = tiny_llama(seed=1)
    quantise_weights(fresh, 3)
    assert not mx.allclose(fresh(tokens), model(tokens))
    fresh.load_weights(str(tmp_path / "packed.safetensors"))
    assert mx.array_equal(fresh(tokens), model(tokens))
    other = tiny_llama(seed=1)
    quantise_weights(other, 4)
    with pytest.raises(ValueError):
        other.load_weights(str(tmp_path / "packed.safetensors"))


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="2 to 8 bits, not 1"):
        RotatedLinear(normal(8, 64), 1)
    model = nn.Sequential(nn.Linear(64, 40), nn.Linear(40, 8))
    with pytest.raises(ValueError, match=r"layers\.1: in_features must be a multiple of 32"):
        quantise_weights(model)
    assert type(model.layers[0]) is nn.Linear
