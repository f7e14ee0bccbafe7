"""Reading GGUF files: blocks against other readers, damaged files against nothing but GGUFError."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import tiny_model, write_gguf, write_tiny_llama

from tui.engine.convert import convert
from tui.engine.gguf import GGUFError, read_gguf
from tui.engine.gguf_blocks import read_arrays

SCALES = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}
"""Elements and bytes of a block, and where its fp16 scales lie."""


def random_blocks(kind: str, rows: int, columns: int) -> bytes:
    elements, nbytes, places = SCALES[kind]
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (rows * columns // elements, nbytes), np.uint8)
    for place in places:
        scales = random.uniform(0.001, 0.01, len(blocks)).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def write_one(path: Path, kind: str, rows: int = 6, columns: int = 512) -> None:
    write_gguf(
        path, {"a": 1}, {"x.weight": (kind, (rows, columns), random_blocks(kind, rows, columns))}
    )


def dequantised(path: Path) -> np.ndarray:
    gguf = read_gguf(path)
    arrays = read_arrays(gguf, gguf.tensors["x.weight"])
    bits = arrays["weight"].shape[-1] * 32 // 512
    scales, biases = (arrays[name].astype(mx.float32) for name in ("scales", "biases"))
    return np.array(mx.dequantize(arrays["weight"], scales, biases, 32, bits))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_are_what_mlx_reads(tmp_path, kind):
    write_one(tmp_path / "x.gguf", kind)
    gguf = read_gguf(tmp_path / "x.gguf")
    ours = read_arrays(gguf, gguf.tensors["x.weight"])
    theirs = mx.load(str(tmp_path / "x.gguf"))
    assert {f"x.{name}" for name in ours} == theirs.keys()
    for name, array in ours.items():
        assert mx.array_equal(array, theirs[f"x.{name}"])


def test_six_bits_are_what_mlx_dequantises(tmp_path):
    """Anew to 8 bits, that is: within a 255th of the range, and the range is twice the maximum."""
    write_one(tmp_path / "x.gguf", "Q6_K")
    theirs = np.array(mx.load(str(tmp_path / "x.gguf"))["x.weight"].astype(mx.float32))
    error = np.abs(dequantised(tmp_path / "x.gguf") - theirs)
    assert error.max() <= 2 / 255 * np.abs(theirs).max()


def plain_q5(kind: str, block: bytes) -> list[float]:
    """One block, written as ggml's dequantize_row_q5_0 and _q5_1 are."""
    start = 2 if kind == "Q5_0" else 4
    scale, bias = np.frombuffer(block[:4], "<f2").astype(float)
    fifth = int.from_bytes(block[start : start + 4], "little")
    values = [0.0] * 32
    for j in range(16):
        byte = block[start + 4 + j]
        low = (byte & 15) | ((fifth >> j << 4) & 16)
        high = (byte >> 4) | ((fifth >> (j + 12)) & 16)
        for place, code in ((j, low), (j + 16, high)):
            values[place] = scale * (code - 16) if kind == "Q5_0" else scale * code + bias
    return values


def plain_k(kind: str, block: bytes) -> list[float]:
    """One block, written as ggml's dequantize_row_q4_K and _q5_K are."""
    scale, minimum = np.frombuffer(block[:4], "<f2").astype(float)
    packed, fifth = block[4:16], block[16:48] if kind == "Q5_K" else bytes(32)
    low = block[-128:]
    values = []
    for group in range(8):
        if group < 4:
            s, m = packed[group] & 63, packed[group + 4] & 63
        else:
            s = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            m = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        for i in range(32):
            nibble = low[group // 2 * 32 + i] >> (4 * (group % 2)) & 15
            code = nibble + (16 if fifth[i] >> group & 1 else 0)
            values.append(scale * s * code - minimum * m)
    return values


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K"])
def test_blocks_are_what_ggml_says(tmp_path, kind):
    write_one(tmp_path / "x.gguf", kind)
    _, nbytes, _ = SCALES[kind]
    content = random_blocks(kind, 6, 512)
    blocks = [content[at : at + nbytes] for at in range(0, len(content), nbytes)]
    plain = [(plain_k if kind[-1] == "K" else plain_q5)(kind, block) for block in blocks]
    expected = np.array(plain).reshape(6, 512)
    error = np.abs(dequantised(tmp_path / "x.gguf") - expected)
    assert error.max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_are_kept(tmp_path, kind):
    dtype = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}[kind]
    values = mx.random.normal((4, 8)).astype(dtype)
    content = bytes(memoryview(values.view(mx.uint32 if kind == "F32" else mx.uint16)))
    metadata = {"general.alignment": 128}
    write_gguf(tmp_path / "x.gguf", metadata, {"x.weight": (kind, (4, 8), content)}, alignment=128)
    gguf = read_gguf(tmp_path / "x.gguf")
    assert mx.array_equal(read_arrays(gguf, gguf.tensors["x.weight"])["weight"], values)


def test_metadata_comes_back(tmp_path):
    metadata = {
        "flag": True,
        "count": -3,
        "ratio": 0.5,
        "name": "Ġhé",
        "names": ["a", "", "ß"],
        "counts": [1, 2, 3],
        "flags": [True, False],
    }
    write_gguf(tmp_path / "x.gguf", metadata, {})
    assert read_gguf(tmp_path / "x.gguf").metadata == metadata


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_llama(path, tiny_model())
    return path.read_bytes()


ANY_FILE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY_FILE
@given(share=st.floats(0, 1, exclude_max=True), header_only=st.booleans())
def test_a_file_cut_anywhere_is_refused(tmp_path, tiny, share, header_only):
    length = int(share * (8_000 if header_only else len(tiny)))
    (tmp_path / "cut.gguf").write_bytes(tiny[:length])
    with pytest.raises(GGUFError):
        read_gguf(tmp_path / "cut.gguf")


@ANY_FILE
@given(data=st.data())
def test_a_damaged_header_is_refused_or_read(tmp_path, tmp_path_factory, tiny, data):
    content = bytearray(tiny)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 8_000))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged.gguf").write_bytes(content)
    try:
        gguf = read_gguf(tmp_path / "damaged.gguf")
        convert(gguf, tmp_path_factory.mktemp("converted"), lambda done, total: None)
    except GGUFError as error:
        assert str(error)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path, tiny):
    path = tmp_path / "x.gguf"
    path.write_bytes(tiny)
    gguf = read_gguf(path)
    path.write_bytes(tiny[: len(tiny) // 2])
    (tmp_path / "out").mkdir()
    with pytest.raises(GGUFError, match="cut off"):
        convert(gguf, tmp_path / "out", lambda done, total: None)
