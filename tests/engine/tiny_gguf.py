"""Writes GGUF files for tests: any, and a whole tiny llama."""

import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama

TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7,
    "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30,
}  # fmt: skip

ARGS = llama.ModelArgs(
    model_type="llama",
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    vocab_size=264,
    max_position_embeddings=512,
    rope_theta=100_000.0,
    tie_word_embeddings=False,
)

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    alignment: int = 32,
) -> None:
    """`tensors`: name to type, row-major shape, and the bytes."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _string(key) + _typed(value)
    content = b""
    for name, (kind, shape, data) in tensors.items():
        content += bytes(-len(content) % alignment)
        header += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", TYPES[kind], len(content))
        content += data
    path.write_bytes(header + bytes(-len(header) % alignment) + content)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _typed(value[0])[:4]
        return (
            struct.pack("<I", 9)
            + kind
            + struct.pack("<Q", len(value))
            + b"".join(_typed(item)[4:] for item in value)
        )
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _string(value)


def tiny_metadata(architecture: str = "llama") -> dict[str, Any]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(68))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [chr(byte) if byte in printable else next(others) for byte in range(256)]
    tokens += ["he", "ll", "hell", "hello", "Ġhello"]
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": ARGS.num_hidden_layers,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": ARGS.hidden_size,
        f"{architecture}.feed_forward_length": ARGS.intermediate_size,
        f"{architecture}.attention.head_count": ARGS.num_attention_heads,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": ARGS.rms_norm_eps,
        f"{architecture}.rope.freq_base": ARGS.rope_theta,
        f"{architecture}.rope.dimension_count": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    }


def tiny_model(architecture: str = "llama") -> Any:
    """With random weights, the same ones each time."""
    mx.random.seed(7)
    module = import_module(f"mlx_lm.models.{architecture}")
    model = module.Model(module.ModelArgs.from_dict(vars(ARGS) | {"model_type": architecture}))
    # Norms of ones and biases of zeros would hide an exchange of one for another.
    for name, weight in tree_flatten(model.parameters()):
        if "norm" in name or name.endswith("bias"):
            model.load_weights([(name, 1 + 0.2 * mx.random.normal(weight.shape))], strict=False)
    mx.eval(model.parameters())
    return model


def interleave_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """What the conversion to GGUF does to q_proj and k_proj (llama.cpp, `permute`)."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_tiny_llama(path: Path, model: Any, **changes: Any) -> None:
    """`changes` replace entries of the metadata: dots are written as double underscores."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    write_gguf(path, tiny_metadata(model.model_type) | changed, tiny_tensors(model))


def tiny_tensors(model: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    tensors = {}
    heads = {
        "self_attn.q_proj": ARGS.num_attention_heads,
        "self_attn.k_proj": ARGS.num_key_value_heads or 0,
    }
    for name, weight in tree_flatten(model.parameters()):
        base, _, kind = name.rpartition(".")
        rows = np.array(weight)
        prefix = ""
        if base.startswith("model.layers."):
            _, _, layer, base = base.split(".", 3)
            prefix = f"blk.{layer}."
        if base in heads and model.model_type == "llama":
            rows = interleave_halves(rows, heads[base])
        tensors[f"{prefix}{NAMES[base]}.{kind}"] = ("F32", rows.shape, rows.tobytes())
    return tensors
