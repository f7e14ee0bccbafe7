"""Turns a GGUF of the llama family into a folder that mlx-lm loads.

GGUF stores the rows of llama's q_proj and k_proj with the two halves of each head interleaved,
as its rotary embedding wants them; MLX's rotates halves, so the rows go back to where they were.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from tui.engine.gguf import GGUF, GGUFError, Tensor
from tui.engine.gguf_blocks import read_arrays
from tui.engine.gguf_config import ROPE_FACTORS, model_config
from tui.engine.gguf_tokenizer import write_tokenizer

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
_OPTIONAL = {"attn_q_norm", "attn_k_norm"}


def convert(gguf: GGUF, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Writes config, weights and tokenizer into `folder`, which exists and is empty.

    `progress` is told how many of how many bytes of tensors are done, and may raise to stop.
    Raises GGUFError, OSError.
    """
    config = model_config(gguf)
    _check_complete(gguf, config["num_hidden_layers"])
    write_tokenizer(gguf.metadata, folder)
    _write_weights(gguf, config, folder, progress)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _check_complete(gguf: GGUF, layers: int) -> None:
    gguf.tensor("output_norm.weight")
    for layer in range(layers):
        for name in _INNER.keys() - _OPTIONAL:
            gguf.tensor(f"blk.{layer}.{name}.weight")


def _row_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape that each layer's weight must have, by GGUF's name without the block."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    vocabulary, head_dim = config["vocab_size"], config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    return {
        "token_embd": (vocabulary, hidden),
        "output_norm": (hidden,),
        "output": (vocabulary, hidden),
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_down": (hidden, inner),
        "ffn_up": (inner, hidden),
    }


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
    inner = base.rpartition(".")[2]
    shape = _row_shapes(config)[inner]
    if tensor.shape != (shape if kind == "weight" else shape[:1]):
        raise GGUFError(f"its tensor {tensor.name!r} of shape {tensor.shape} does not fit")
    arrays = read_arrays(gguf, tensor)
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    if inner in heads and config["model_type"] == "llama":
        arrays = {name: separate_halves(array, heads[inner]) for name, array in arrays.items()}
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
