import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcore.bitplanes import drop, field_widths, pack, unpack


def random_codes(bits, head_dim, seed):
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (2, 3, head_dim), dtype=np.uint32)
    return mx.array(codes)


@given(st.integers(1, 8), st.sampled_from([8, 64, 80, 96, 128, 256]), st.integers(0, 9))
def test_unpack_undoes_pack_at_the_width_promised(bits, head_dim, seed):
    codes = random_codes(bits, head_dim, seed)
    fields = pack(codes, bits)
    assert sum(field_widths(bits)) == bits
    assert sum(field.nbytes for field in fields) * 8 == codes.size * bits
    assert mx.array_equal(unpack(fields, bits).reshape(codes.shape), codes)


@given(st.integers(1, 8), st.data())
def test_drop_keeps_the_top_bits(bits, data):
    kept = data.draw(st.integers(1, bits))
    codes = random_codes(bits, 64, kept)
    dropped = drop(pack(codes, bits), bits, kept)
    assert mx.array_equal(unpack(dropped, kept).reshape(codes.shape), codes >> (bits - kept))


def test_dropping_single_bits_keeps_the_same_arrays():
    fields = pack(random_codes(6, 64, 0), 6)
    assert all(left is right for left, right in zip(drop(fields, 6, 4), fields, strict=False))


def test_elements_lie_low_bits_first():
    codes = mx.array([[1, 2, 3, 4, 5, 6, 7, 8]], dtype=mx.uint32)
    assert pack(codes, 4)[0].item() == 0x87654321
