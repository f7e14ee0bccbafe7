"""What a GGUF's metadata says about its model, as the config.json that mlx-lm reads."""

import math
from typing import Any

import mlx.core as mx
import numpy as np

from tui.engine.gguf import GGUF, GGUFError
from tui.engine.gguf_blocks import GROUP, read_arrays

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"


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
    if head_dim % 2:
        raise GGUFError(f"its heads of size {head_dim} cannot be rotated in pairs")
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
        "vocab_size": gguf.tensor("token_embd.weight").shape[0],
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
