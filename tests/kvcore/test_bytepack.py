import mlx.core as mx
import numpy as np
import pytest

from kvcore.bytepack import pack_bytes, packed_nbytes, unpack_bytes


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 7, 8, 35, 127])
def test_codes_come_back_from_as_few_bytes_as_they_take(bits, count):
    codes = np.random.default_rng(0).integers(0, 1 << bits, (2, 3, count), dtype=np.uint32)
    fields = pack_bytes(mx.array(codes), bits)
    assert all(field.dtype == mx.uint8 for field in fields)
    assert sum(field.shape[-1] for field in fields) == packed_nbytes(count, bits)
    assert mx.array_equal(unpack_bytes(fields, bits, count), mx.array(codes))


def test_the_first_code_is_in_the_low_bits():
    (field,) = pack_bytes(mx.array([1, 2, 3, 0, 3], dtype=mx.uint32), 2)
    assert field.tolist() == [0b00_11_10_01, 0b11]
