"""Turns a GGUF of the llama family into a folder that mlx-lm loads.

GGUF stores the rows of llama's q_proj and k_proj with the two halves of each head interleaved,
as its rotary embedding wants them; MLX's rotates halves, so the rows go back to where they were.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tui.engine.gguf import GGUF, GGUFError, Tensor
from tui.engine.gguf_blocks import GROUP, read_arrays
from tui.engine.gguf_tokenizer import write_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")

SHARD = 1 << 30
"""Bytes of converted weights that are held before they are written."""

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_up": "mlp.up_proj",
}
ROPE_FACTORS = "rope_freqs.weight"


def convert(gguf: GGUF, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Writes config, weights and tokenizer into `folder`, which exists and is empty.

    `progress` is told how many of how many bytes of tensors are done, and may raise to stop.
    Raises GGUFError, OSError.
    """
    config = model_config(gguf)
    write_tokenizer(gguf.metadata, folder)
    _write_weights(gguf, config, folder, progress)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def model_config(gguf: GGUF) -> dict[str, Any]:
    """The config.json that mlx-lm builds the same model from. Raises GGUFError."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise GGUFError(
            f"it is a model of the architecture {architecture!r}, "
            f"and only {', '.join(ARCHITECTURES)} are converted"
        )
    fields = _Fields(gguf.metadata, architecture)
    if fields.integer("expert_count", 0):
        raise GGUFError("it is a mixture of experts, which is not converted")
    heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise GGUFError("its keys and values differ in head size, which is not converted")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise GGUFError("it rotates only a part of each head, which is not converted")
    theta = fields.number("rope.freq_base", 10_000.0)
    context = fields.integer("context_length")
    stops = [
        gguf.metadata[key]
        for name in ("eos", "eot", "eom")
        if isinstance(gguf.metadata.get(key := f"tokenizer.ggml.{name}_token_id"), int)
    ]
    return {
        "model_type": architecture,
        "hidden_size": hidden,
        "num_hidden_layers": fields.integer("block_count"),
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": _tensor(gguf, "token_embd.weight").shape[0],
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(gguf, fields, head_dim, theta, context),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_output.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in gguf.tensors,
        "eos_token_id": stops,
        # mlx-lm reads each layer's own bits and group size off its arrays.
        "quantization": {"group_size": GROUP, "bits": 4},
    }


class _Fields:
    """The metadata under the architecture's name."""

    def __init__(self, metadata: dict[str, Any], architecture: str):
        self.metadata = metadata
        self.architecture = architecture

    def number(self, name: str, default: float | None = None) -> float:
        key = f"{self.architecture}.{name}"
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise GGUFError(f"its {key} is {value!r}, not a number")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if not isinstance(value, int) or (value == 0 and default != 0):
            raise GGUFError(f"its {self.architecture}.{name} is {value!r}, not a whole number")
        return value


def _tensor(gguf: GGUF, name: str) -> Tensor:
    if name not in gguf.tensors:
        raise GGUFError(f"it has no tensor {name!r}: the file is damaged or of another kind")
    return gguf.tensors[name]


def _rope_scaling(
    gguf: GGUF, fields: _Fields, head_dim: int, theta: float, context: int
) -> dict[str, Any] | None:
    kind = fields.metadata.get(f"{fields.architecture}.rope.scaling.type", "none")
    if ROPE_FACTORS in gguf.tensors:
        factors = read_arrays(gguf, gguf.tensors[ROPE_FACTORS])["weight"]
        return _llama3_scaling(factors, head_dim, theta)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise GGUFError(f"it scales its rotary embedding by {kind!r}, which is not converted")
    scaling: dict[str, Any] = {"type": kind, "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields.integer(
            "rope.scaling.original_context_length", context
        )
    return scaling


def _llama3_scaling(factors: mx.array, head_dim: int, theta: float) -> dict[str, Any]:
    """Llama 3.1's scaling from the factor of each frequency, which is all that GGUF keeps.

    The factors are computed again from the scaling found, and refused if they differ.
    """
    found = [float(factor) for factor in np.array(factors.astype(mx.float32))]
    scaling = {
        "rope_type": "llama3",
        "factor": max(found),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = []
    for index in range(0, head_dim, 2):
        turns = scaling["original_max_position_embeddings"] / (
            2 * math.pi * theta ** (index / head_dim)
        )
        # Below one turn in the original context the factor is whole, above four turns it is 1.
        smooth = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        expected.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    if len(found) != len(expected) or not all(
        math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, expected, strict=True)
    ):
        raise GGUFError("it scales its rotary embedding in a way that is not Llama 3.1's")
    return scaling


def _write_weights(
    gguf: GGUF, config: dict[str, Any], folder: Path, progress: Callable[[int, int], None]
) -> None:
    dtype = {"F32": mx.float32, "BF16": mx.bfloat16}.get(
        gguf.tensors["token_embd.weight"].layout.name, mx.float16
    )
    tensors = [tensor for name, tensor in gguf.tensors.items() if name != ROPE_FACTORS]
    total = sum(tensor.nbytes for tensor in tensors)
    done = shards = 0
    pending: dict[str, mx.array] = {}
    for tensor in tensors:
        progress(done, total)
        pending |= _convert_tensor(gguf, tensor, config, dtype)
        done += tensor.nbytes
        if sum(array.nbytes for array in pending.values()) >= SHARD:
            shards += 1
            _save(pending, folder / f"model-{shards:05}.safetensors")
            pending = {}
    if pending:
        name = f"model-{shards + 1:05}.safetensors" if shards else "model.safetensors"
        _save(pending, folder / name)
    progress(total, total)


def _convert_tensor(
    gguf: GGUF, tensor: Tensor, config: dict[str, Any], dtype: mx.Dtype
) -> dict[str, mx.array]:
    base, _, kind = tensor.name.rpartition(".")
    target = _layer_name(base)
    if target is None or kind not in ("weight", "bias"):
        raise GGUFError(f"it has a tensor {tensor.name!r} that models of its kind have not")
    arrays = read_arrays(gguf, tensor)
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }.get(base.rpartition(".")[2])
    if heads is not None and config["model_type"] == "llama":
        if tensor.shape[0] != heads * config["head_dim"]:
            raise GGUFError(f"its tensor {tensor.name!r} of shape {tensor.shape} does not fit")
        arrays = {name: separate_halves(array, heads) for name, array in arrays.items()}
    converted = {}
    for name, array in arrays.items():
        if mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(dtype)
        converted[f"{target}.{kind if name == 'weight' else name}"] = array
    return converted


def _layer_name(base: str) -> str | None:
    """ "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; None for a name of no known layer."""
    if base in _OUTER:
        return _OUTER[base]
    block, _, rest = base.partition(".")
    index, _, inner = rest.partition(".")
    if block != "blk" or not index.isdecimal() or inner not in _INNER:
        return None
    return f"model.layers.{int(index)}.{_INNER[inner]}"


def separate_halves(rows: mx.array, heads: int) -> mx.array:
    """Rows of each head from (half, 2), interleaved, to (2, half), one half after the other."""
    shape = rows.shape
    return rows.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _save(arrays: dict[str, mx.array], path: Path) -> None:
    mx.save_safetensors(str(path), arrays, metadata={"format": "mlx"})
