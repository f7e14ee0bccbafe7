"""How the cache meets the model: attention that reads handles, and what each layer holds.

A hooked attention module gets a class of its own, with the same code and one name overlaid:
`scaled_dot_product_attention`. Where it is given handles it attends on the packed codes, else it
calls what it always called. No module of mlx-lm is patched, and other instances are untouched.
"""

import types
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from kvcore.cache import PackedKVCache
from kvcore.model_caches import is_a, parts
from kvcore.report import Kind, LayerReport
from kvcore.view import KVHandle

_HOOKED = "scaled_dot_product_attention"


def hook(model: nn.Module) -> int:
    """Let the model's attention read packed caches; returns how many modules now do."""
    hooked = 0
    for _, module in model.named_modules():
        overlaid = _overlaid_class(type(module))
        if overlaid is not None:
            object.__setattr__(module, "__class__", overlaid)
        hooked += hasattr(type(module), "_unhooked")
    return hooked


def unhook(model: nn.Module) -> None:
    """Undo `hook`; needed before a model is pickled."""
    for _, module in model.named_modules():
        original = getattr(type(module), "_unhooked", None)
        if original is not None:
            object.__setattr__(module, "__class__", original)


def layer_reports(caches: Sequence[Any]) -> tuple[LayerReport, ...]:
    """What each layer's cache holds, in the order of the layers."""
    return tuple(_report(index, cache) for index, cache in enumerate(caches))


def attend(queries: mx.array, keys: Any, values: Any, *args: Any, **kwargs: Any) -> mx.array:
    """mlx-lm's scaled_dot_product_attention for handles that belong together."""
    bound = dict(zip(("cache", "scale", "mask", "sinks"), args, strict=False)) | kwargs
    keys.readers.add(queries.shape[2] == 1)
    return keys.whole.attend(queries, bound["scale"], bound.get("mask"), bound.get("sinks"))


def _overlaid_class(cls: type) -> type | None:
    """A subclass whose methods see our attention, or None where no method would."""
    if hasattr(cls, "_unhooked"):
        return None
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType) and _calls_it(function):
                overlay = dict(function.__globals__)
                overlay[_HOOKED] = _dispatch(overlay[_HOOKED])
                methods[name] = types.FunctionType(
                    function.__code__,
                    overlay,
                    function.__name__,
                    function.__defaults__,
                    function.__closure__,
                )
                methods[name].__kwdefaults__ = function.__kwdefaults__
    return type(cls.__name__, (cls,), methods | {"_unhooked": cls}) if methods else None


def _calls_it(function: types.FunctionType) -> bool:
    # As a global: vision towers call mx.fast's of that name, and have no cache.
    return _HOOKED in function.__globals__ and _HOOKED in _names(function.__code__)


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


def _dispatch(original: Any) -> Any:
    def scaled_dot_product_attention(queries, keys, values, *args, **kwargs):
        # On the handles, not on the cache argument: layers that share another's keys pass None.
        both = type(keys) is KVHandle and type(values) is KVHandle and keys.whole is values.whole
        return (attend if both else original)(queries, keys, values, *args, **kwargs)

    return scaled_dot_product_attention


def _report(index: int, cache: Any) -> LayerReport:
    inner = parts(cache)
    nbytes = sum(part.nbytes for part in inner)
    packed = next((part for part in inner if isinstance(part, PackedKVCache)), None)
    if packed is None:
        return LayerReport(index, _kind(inner), _tokens(inner), nbytes)
    return LayerReport(
        index,
        "packed",
        packed.offset,
        nbytes,
        half_nbytes=packed.half_nbytes,
        key_bits=packed.key_bits,
        value_bits=packed.value_bits,
        fewest_bits=packed.fewest_bits,
        key_bit_nbytes=sum(packed.key_codec.bit_nbytes(s.keys) for s in packed.body),
        value_bit_nbytes=sum(packed.value_codec.bit_nbytes(s.values) for s in packed.body),
        token_nbytes=packed.token_nbytes,
        reads="direct" if packed.read_directly else "transient" if packed.offset else None,
    )


def _kind(caches: list[Any]) -> Kind:
    if any(getattr(cache, "latent", False) for cache in caches):
        return "latent"
    if any(is_a(cache, "KVCache") for cache in caches):
        return "full"
    return "sliding" if any(is_a(cache, "RotatingKVCache") for cache in caches) else "state"


def _tokens(caches: list[Any]) -> int:
    return max(cache.size() for cache in caches)
