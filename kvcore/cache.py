"""One layer's cache in three parts: sinks, packed body, recent tokens.

The first few tokens (sinks) and the last ones (recent) stay in half precision; what lies between
is the body, packed in blocks of 128. New tokens go to recent, full blocks move on to the body, so
decode never encodes one token at a time, and trimming the end is exact.
"""

from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from kvcore.artefact import ArtefactError, Learnt, digest, learnt
from kvcore.codec import Codec
from kvcore.codecs import Side
from kvcore.codecs.heads import make_codec_by_head
from kvcore.codes import BLOCK, Codes
from kvcore.config import KVCacheConfig
from kvcore.methods import METHODS
from kvcore.segment import Segment
from kvcore.view import KVHandle, View

BUFFER_STEP = 64
"""Tokens by which the buffer of plain tokens grows, so that a short chat holds little more than
it has."""


class PackedKVCache:
    """A layer's cache after mlx-lm's protocol, packed.

    `key_bits`, `value_bits`: widths at which new blocks are packed; the widths of what is held are
    the same unless they were raised again after a `lower`. `layer`: the cache's number among those
    that are packed, for methods that learnt something of each.
    """

    def __init__(self, config: KVCacheConfig, layer: int = 0):
        self.config = config
        self.layer = layer
        self.key_bits, self.value_bits = config.key_bits, config.value_bits
        self.offset = 0
        self._plain: tuple[mx.array, mx.array] | None = None
        self._plain_tokens = 0
        self._body: list[Segment] = []
        self.read_directly: set[bool] = set()
        """Query kinds, decode (True) or prefill (False), that attended through a handle."""
        self.key_codec, self.value_codec = _codecs(config, learnt(config, layer))

    @property
    def body(self) -> tuple[Segment, ...]:
        return tuple(self._body)

    @property
    def fewest_bits(self) -> tuple[int, int]:
        """That the methods have for keys and for values."""
        keys = METHODS[self.config.method].key_bits
        values = METHODS[self.config.value_method or self.config.method].value_bits
        return (keys or (1,))[0], (values or (1,))[0]

    @property
    def sinks(self) -> int:
        """Sink tokens held."""
        return min(self.config.sinks, self._plain_tokens)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[KVHandle, KVHandle]:
        """Append [batch, kv_heads, n, head_dim]; all tokens, those that came last in full."""
        body = self.body
        sinks = min(self.config.sinks, self._plain_tokens + keys.shape[2])
        plain = self._append(_half(keys), _half(values))
        view = View(*plain, sinks, body, self.key_codec, self.value_codec)
        return self._handles(view, decode=keys.shape[2] == 1, dtype=keys.dtype)

    def keys_and_values(self) -> tuple[KVHandle, KVHandle]:
        """All tokens held, as `update_and_fetch` returns them."""
        keys, values = self._buffers()
        view = View(
            keys,
            values,
            self._plain_tokens,
            self.sinks,
            self.body,
            self.key_codec,
            self.value_codec,
        )
        return self._handles(view, decode=None, dtype=keys.dtype)

    def lower(self, key_bits: int, value_bits: int) -> int:
        """Drop bits of all that is packed, and of what will be, as far as the methods have fewer;
        never raises any.

        Evaluates, one segment at a time. Returns the bytes freed.
        """
        before = self.nbytes
        fewest_key_bits, fewest_value_bits = self.fewest_bits
        self.key_bits = min(self.key_bits, max(key_bits, fewest_key_bits))
        self.value_bits = min(self.value_bits, max(value_bits, fewest_value_bits))
        for index, segment in enumerate(self._body):
            self._body[index] = Segment(
                self.key_codec.lower(segment.keys, self.key_bits),
                self.value_codec.lower(segment.values, self.value_bits),
            )
            del segment
        return before - self.nbytes

    def trim(self, n: int) -> int:
        """Take back the last n tokens, or all if fewer are held; returns how many."""
        taken = left = min(n, self.offset)
        self.offset -= taken
        recent = min(left, self._plain_tokens - self.sinks)
        self._plain_tokens -= recent
        left -= recent
        while left and self._body:
            last = self._body.pop()
            if last.tokens > left:
                self._body.append(last.cut(last.tokens - left))
                mx.eval(self._body[-1].arrays())
            left -= min(left, last.tokens)
        self._plain_tokens -= left
        return taken

    def arrays(self) -> list[mx.array]:
        """Every array this layer holds, the rotation's table included."""
        if self._plain is None:
            return []
        held = list(self._plain)
        for segment in self._body:
            held += segment.arrays()
        if self._body:
            codecs = (self.key_codec, self.value_codec)
            shared = zip(codecs, self._plain, strict=True)
            tables = [table for codec, x in shared for table in codec.tables(x.shape[-1])]
            held += {id(table): table for table in tables}.values()
        return held

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    @property
    def half_nbytes(self) -> int:
        """Bytes of the same tokens as plain half-precision keys and values."""
        if self._plain is None:
            return 0
        batch, kv_heads = self._plain[0].shape[:2]
        return 2 * batch * kv_heads * self.offset * sum(x.shape[-1] for x in self._plain)

    @property
    def token_nbytes(self) -> int | None:
        """Bytes that one more token costs once it is packed; None before the first token."""
        if self._plain is None:
            return None
        keys, values = self._plain
        key = self.key_codec.token_nbytes(keys.shape[-1], self.key_bits)
        value = self.value_codec.token_nbytes(values.shape[-1], self.value_bits)
        return round(keys.shape[0] * keys.shape[1] * (key + value))

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return self._plain is None

    def is_trimmable(self) -> bool:
        return True

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        return create_attention_mask(
            N, offset=self.offset, return_array=return_array, window_size=window_size
        )

    @property
    def keys(self) -> mx.array | None:
        """The recent keys' buffer: what pipeline-parallel models tie their sends to."""
        return self._plain[0] if self._plain else None

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        self._plain = (keys, self._buffers()[1])

    @property
    def state(self) -> list[Any]:
        config = self.config
        body = [
            [segment.tokens, *(_codes_state(side) for side in (segment.keys, segment.values))]
            for segment in self._body
        ]
        return [
            asdict(config)
            | {"options": dict(config.options) or None}
            | {"value_options": dict(config.value_options) or None}
            | {"key_head_bits": list(config.key_head_bits) or None}
            | {"value_head_bits": list(config.value_head_bits) or None},
            [self.offset, self._plain_tokens, self.key_bits, self.value_bits],
            list(self._plain) if self._plain else None,
            body or None,
            [self.layer, digest(config)],
        ]

    @state.setter
    def state(self, state: list[Any]) -> None:
        config, counts, plain, body, (self.layer, packed_with) = state
        given = {name: value for name, value in config.items() if value is not None}
        self.config = KVCacheConfig(**given)
        if packed_with != digest(self.config):
            raise ArtefactError(
                f"{self.config.artefact} is not the artefact that the cache was packed with:"
                " it was made anew since."
            )
        self.key_codec, self.value_codec = _codecs(self.config, learnt(self.config, self.layer))
        self.offset, self._plain_tokens, self.key_bits, self.value_bits = counts
        self._plain = (plain[0], plain[1]) if plain else None
        self._body = [
            Segment(_codes_from(keys_state), _codes_from(values_state))
            for _, keys_state, values_state in body or ()
        ]
        self.read_directly = set()

    @classmethod
    def from_state(cls, state: list[Any], meta_state: Any = None) -> "PackedKVCache":
        """`meta_state` is there for mlx-lm before 0.32.2, which keeps it beside the state."""
        cache = cls.__new__(cls)
        cache.state = state
        return cache

    @property
    def meta_state(self) -> str:
        return ""

    @meta_state.setter
    def meta_state(self, value: Any) -> None:
        if value:
            raise ValueError("a packed cache keeps all it needs in its state")

    def _append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array, int]:
        """Buffers of the plain tokens and the new ones, and how many these are.

        Packs what no longer fits beside the recent tokens.
        """
        held, added = self._plain_tokens, keys.shape[2]
        self.offset += added
        if self._plain is None:
            self._plain = (self._buffer(keys, added), self._buffer(values, added))
        held_keys, held_values = (plain[:, :, :held] for plain in self._plain)
        if held + added > self._capacity:
            keys = mx.concatenate([held_keys, keys], axis=2)
            values = mx.concatenate([held_values, values], axis=2)
            self._pack_all_but_recent(keys, values)
            return keys, values, held + added
        if held + added > self._plain[0].shape[2]:
            grown = [self._buffer(plain, held + added) for plain in self._plain]
            for buffer, plain in zip(grown, (held_keys, held_values), strict=True):
                buffer[:, :, :held] = plain
            self._plain = (grown[0], grown[1])
        self._plain_tokens = held + added
        for buffer, new in zip(self._plain, (keys, values), strict=True):
            buffer[:, :, held : held + added] = new
        return *self._plain, held + added

    def _pack_all_but_recent(self, keys: mx.array, values: mx.array) -> None:
        sinks = self.config.sinks
        blocks = (keys.shape[2] - sinks - self.config.window) // BLOCK
        stop = sinks + blocks * BLOCK
        start = sinks + sum(segment.tokens for segment in self._body)
        segment = Segment(
            self.key_codec.encode(keys[:, :, sinks:stop], self.key_bits, start),
            self.value_codec.encode(values[:, :, sinks:stop], self.value_bits, start),
        )
        if self._body and self._body[-1].takes(segment):
            self._body[-1] = self._body[-1].followed_by(segment)
        else:
            self._body.append(segment)
        self._plain_tokens = sinks + keys.shape[2] - stop
        self._plain = (self._without(keys, sinks, stop), self._without(values, sinks, stop))

    def _without(self, plain: mx.array, start: int, stop: int) -> mx.array:
        """A buffer with the tokens of `plain` before `start` and from `stop` on."""
        buffer = self._buffer(plain, self._plain_tokens)
        buffer[:, :, :start] = plain[:, :, :start]
        buffer[:, :, start : self._plain_tokens] = plain[:, :, stop:]
        return buffer

    def _buffer(self, like: mx.array, tokens: int) -> mx.array:
        """Zeros for `tokens` tokens and a few to come."""
        room = min(-(-tokens // BUFFER_STEP) * BUFFER_STEP, self._capacity)
        batch, kv_heads, _, head_dim = like.shape
        return mx.zeros((batch, kv_heads, max(room, tokens), head_dim), like.dtype)

    def _buffers(self) -> tuple[mx.array, mx.array]:
        if self._plain is None:
            raise ValueError("an empty cache has no keys and values")
        return self._plain

    @property
    def _capacity(self) -> int:
        return self.config.sinks + self.config.window + BLOCK

    def _handles(
        self, view: View, decode: bool | None, dtype: mx.Dtype
    ) -> tuple[KVHandle, KVHandle]:
        if decode in self.read_directly:
            # Only shapes are read; NaN would show if that ever were wrong.
            batch, kv_heads, _, key_dim = view.keys.shape
            nan = mx.array(float("nan"), dtype)
            keys = mx.broadcast_to(nan, (batch, kv_heads, view.tokens, key_dim))
            values = mx.broadcast_to(nan, (*keys.shape[:3], view.values.shape[-1]))
        else:
            keys, values = (whole.astype(dtype) for whole in view.dequantised())
        return KVHandle(keys, view, self.read_directly), KVHandle(values, view, self.read_directly)


def _codecs(config: KVCacheConfig, learnt: Learnt) -> tuple[Codec, Codec]:
    keys = Side(
        "keys",
        config.key_bits,
        config.seed,
        config.options,
        learnt.keys,
        conditioning=config.conditioning or "none",
        outliers=config.outliers,
    )
    values = Side("values", config.value_bits, config.seed, config.value_options, learnt.values)
    key_bits = config.key_head_bits or (config.key_bits,)
    value_bits = config.value_head_bits or (config.value_bits,)
    return (
        make_codec_by_head(config.method, keys, key_bits),
        make_codec_by_head(config.value_method or config.method, values, value_bits),
    )


def _half(x: mx.array) -> mx.array:
    return x if x.dtype in (mx.float16, mx.bfloat16) else x.astype(mx.float16)


def _codes_state(codes: Codes) -> list[Any]:
    # An empty tree does not survive a file.
    return [codes.bits, codes.start, codes.per_token, codes.per_block or None, codes.head_dim]


def _codes_from(state: list[Any]) -> Codes:
    bits, start, per_token, per_block, head_dim = state
    return Codes(bits, start, per_token, per_block or {}, head_dim)
