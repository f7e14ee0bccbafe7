"""Loading by name: a GGUF against the model it was written from, and all that can be wrong."""

import json
import threading

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import generate
from mlx_lm.models.rope_utils import Llama3RoPE
from tiny_gguf import (
    ARGS,
    tiny_metadata,
    tiny_model,
    tiny_tensors,
    write_gguf,
    write_tiny_llama,
)

from kvcore.memory.sample import MemorySample
from tui import paths
from tui.engine import models
from tui.engine.errors import LoadStopped, ModelError
from tui.messages import Loading


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "models"
    monkeypatch.setattr(paths, "models", lambda: folder)
    return folder


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "tiny llama.gguf"
    write_tiny_llama(path, tiny_model())
    return path


def load(name: object, heard: list[Loading] | None = None) -> models.Loaded:
    return models.load(str(name), [].append if heard is None else heard.append, lambda: False)


def test_a_gguf_is_the_model_it_was_written_from(gguf):
    heard: list[Loading] = []
    loaded = load(gguf, heard)
    tokens = mx.array([[1, 70, 200, 33, 5, 262, 8, 9]])
    expected = tiny_model()(tokens)
    assert mx.allclose(loaded.model(tokens), expected, rtol=1e-4, atol=1e-5)
    assert not mx.allclose(loaded.model(tokens[:, ::-1]), expected, rtol=1e-2, atol=1e-2)

    arrays = dict(tree_flatten(loaded.model.parameters()))
    assert loaded.info.name == str(gguf)
    assert (loaded.info.context, loaded.info.layers) == (512, 2)
    assert loaded.info.weights == sum(array.nbytes for array in arrays.values())
    assert loaded.tokenizer.eos_token_ids == {2}
    assert {event.stage for event in heard} == {"convert", "weights"}
    assert heard[-1] == Loading(
        stage="weights", done=loaded.info.weights, total=loaded.info.weights
    )


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_so_is_one_of_qwens(tmp_path, architecture):
    model = tiny_model(architecture)
    write_tiny_llama(tmp_path / "qwen.gguf", model, tokenizer__ggml__pre="qwen2")
    tokens = mx.array([[1, 70, 200, 33, 5, 262, 8, 9]])
    loaded = load(tmp_path / "qwen.gguf")
    assert mx.allclose(loaded.model(tokens), model(tokens), rtol=1e-4, atol=1e-5)


def scaled_rope(original: int) -> Llama3RoPE:
    """Wide enough that some frequencies are scaled, some in part, some not."""
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    return Llama3RoPE(16, 512, False, ARGS.rope_theta, scaling)


def write_scaled(path, original: int) -> None:
    factors = scaled_rope(original)._freqs / ARGS.rope_theta ** (mx.arange(0, 16, 2) / 16)
    tensors = tiny_tensors(tiny_model())
    tensors["rope_freqs.weight"] = ("F32", (8,), bytes(memoryview(factors)))
    write_gguf(path, tiny_metadata(), tensors)


def test_the_scaling_of_llama_3_is_found_again(tmp_path):
    write_scaled(tmp_path / "scaled.gguf", 8192)
    rope = load(tmp_path / "scaled.gguf").model.layers[0].self_attn.rope
    assert mx.allclose(rope._freqs, scaled_rope(8192)._freqs, rtol=1e-5)


def test_another_scaling_is_refused(tmp_path):
    write_scaled(tmp_path / "scaled.gguf", 1024)
    with pytest.raises(ModelError, match="not Llama"):
        load(tmp_path / "scaled.gguf")


def test_the_model_works_in_another_thread(gguf):
    loaded = load(gguf)
    answers: list[str] = []

    def answer() -> None:
        messages = [{"role": "user", "content": "hello"}]
        prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        answers.append(generate(loaded.model, loaded.tokenizer, prompt, max_tokens=4))

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    assert len(answers) == 1


def test_a_conversion_is_kept_until_the_file_changes(gguf, cache):
    load(gguf)
    (first,) = cache.glob("tiny llama-*")
    heard: list[Loading] = []
    load(gguf, heard)
    assert {event.stage for event in heard} == {"weights"}
    write_tiny_llama(gguf, tiny_model(), llama__context_length=1024)
    assert load(gguf).info.context == 1024
    (second,) = cache.glob("tiny llama-*")
    assert second != first


def test_tied_embeddings(tmp_path):
    model = tiny_model()
    model.pop("lm_head")
    model.args.tie_word_embeddings = True
    write_tiny_llama(tmp_path / "tied.gguf", model)
    tokens = mx.array([[1, 2, 3]])
    assert mx.allclose(load(tmp_path / "tied.gguf").model(tokens), model(tokens), 1e-4, 1e-5)


def test_quantised_weights_become_fp32_on_a_cpu(gguf, cache):
    load(gguf)
    (folder,) = cache.glob("tiny llama-*")
    weights = {}
    for name, weight in mx.load(str(folder / "model.safetensors")).items():
        if weight.ndim == 2:
            base = name.removesuffix(".weight")
            parts = mx.quantize(weight.astype(mx.float16), 32, 4)
            kinds = ("weight", "scales", "biases")
            weights |= {f"{base}.{kind}": part for kind, part in zip(kinds, parts, strict=True)}
        else:
            weights[name] = weight.astype(mx.float16)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    loaded = load(folder)
    found = dict(tree_flatten(loaded.model.parameters()))
    if models._on_cpu():
        assert {array.dtype for array in found.values()} == {mx.float32}
        name = "model.layers.0.mlp.up_proj"
        scales, biases = (weights[f"{name}.{k}"].astype(mx.float32) for k in ("scales", "biases"))
        expected = mx.dequantize(weights[f"{name}.weight"], scales, biases, 32, 4)
        assert mx.array_equal(found[f"{name}.weight"], expected)
    else:
        assert {name: array.dtype for name, array in found.items()} == {
            name: array.dtype for name, array in weights.items()
        }
    assert loaded.info.weights == sum(array.nbytes for array in found.values())


def test_weights_stay_as_shipped_where_fp32_would_not_fit(gguf, cache, monkeypatch):
    if not models._on_cpu():
        pytest.skip("weights always stay as shipped on a GPU")
    load(gguf)
    (folder,) = cache.glob("tiny llama-*")
    weights = mx.load(str(folder / "model.safetensors"))
    half = {name: weight.astype(mx.float16) for name, weight in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), half)
    little = MemorySample(time=0.0, available=1 << 18)
    monkeypatch.setattr(models, "read_sample", lambda: little)
    loaded = load(folder)
    assert {array.dtype for _, array in tree_flatten(loaded.model.parameters())} == {mx.float16}
    assert "as shipped" in loaded.info.backend


def test_weights_that_can_never_fit_are_refused(gguf, monkeypatch):
    little = MemorySample(time=0.0, total=1 << 17, gpu_limit=1 << 17)
    monkeypatch.setattr(models, "read_sample", lambda: little)
    with pytest.raises(ModelError, match="smaller model") as caught:
        load(gguf)
    assert_sentence(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": "mamba"}, "'mamba'"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__block_count": 3}, "blk.2."),
        ({"llama__feed_forward_length": 32}, "does not fit"),
        ({"llama__attention__head_count": 0}, "head_count"),
        ({"llama__attention__head_count": "four"}, "not a number"),
        ({"llama__rope__dimension_count": 8}, "part of each head"),
        ({"llama__rope__scaling__type": "spiral"}, "'spiral'"),
        ({"tokenizer__ggml__pre": "martian"}, "'martian'"),
    ],
)
def test_a_gguf_that_cannot_be_converted(tmp_path, cache, changes, words):
    path = tmp_path / "odd.gguf"
    write_tiny_llama(path, tiny_model(), **changes)
    with pytest.raises(ModelError, match=words) as caught:
        load(path)
    assert_sentence(caught.value)
    assert str(path) in str(caught.value)
    assert [entry.name for entry in cache.iterdir()] == [".lock"]


def assert_sentence(error: ModelError) -> None:
    text = str(error)
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./no/such/model", "no folder or file"),
        ("/no/such/file.gguf", "no folder or file"),
        ("owner/file.gguf", "no folder or file"),
        ("nonsense", "no folder or file"),
        ("", "no folder or file"),
    ],
)
def test_names_that_stand_for_nothing(name, words):
    with pytest.raises(ModelError, match=words) as caught:
        load(name)
    assert_sentence(caught.value)


def damage(folder, kind):
    weights = folder / "model.safetensors"
    match kind:
        case "no config":
            (folder / "config.json").unlink()
        case "broken config":
            (folder / "config.json").write_text('{"model_type": "llama"')
        case "unknown type":
            (folder / "config.json").write_text('{"model_type": "martian"}')
        case "no weights":
            weights.unlink()
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "weights of another model":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
            (folder / "tokenizer_config.json").unlink()
        case "broken tokenizer":
            (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no config", "no config.json"),
        ("broken config", "mlx-lm"),
        ("unknown type", "martian"),
        ("no weights", "no weights"),
        ("cut weights", "mlx-lm"),
        ("weights of another model", "[Mm]issing"),
        ("no tokenizer", "no tokenizer"),
        ("broken tokenizer", "mlx-lm"),
    ],
)
def test_damaged_folders(gguf, cache, kind, words):
    load(gguf)
    (folder,) = cache.glob("tiny llama-*")
    damage(folder, kind)
    with pytest.raises(ModelError, match=words) as caught:
        load(folder)
    assert_sentence(caught.value)
    assert str(folder) in str(caught.value)


def test_a_full_disk_is_said(gguf, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr(models, "convert", full)
    with pytest.raises(ModelError, match="No space left on device") as caught:
        load(gguf)
    assert_sentence(caught.value)


@pytest.mark.parametrize("stage", ["convert", "weights"])
def test_a_load_can_be_stopped(gguf, cache, stage):
    heard: list[Loading] = []

    def stopped() -> bool:
        return bool(heard) and heard[-1].stage == stage

    with pytest.raises(LoadStopped):
        models.load(str(gguf), heard.append, stopped)
    assert not list(cache.glob("*.part"))
    assert load(gguf).info.layers == 2
