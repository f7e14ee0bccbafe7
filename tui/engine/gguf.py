"""Reads GGUF files: a header of typed keys and values, a list of tensors, their bytes.

Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian. Everything a
file claims is held against its length before it is believed, so a truncated or damaged file
ends in a GGUFError and nothing else.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


class GGUFError(ValueError):
    """Says what is wrong with the file, without naming it."""


@dataclass(frozen=True)
class Layout:
    """How a tensor's elements are stored: blocks of `elements`, each of `nbytes` bytes."""

    name: str
    elements: int
    nbytes: int


LAYOUTS = {
    0: Layout("F32", 1, 4),
    1: Layout("F16", 1, 2),
    2: Layout("Q4_0", 32, 18),
    3: Layout("Q4_1", 32, 20),
    6: Layout("Q5_0", 32, 22),
    7: Layout("Q5_1", 32, 24),
    8: Layout("Q8_0", 32, 34),
    12: Layout("Q4_K", 256, 144),
    13: Layout("Q5_K", 256, 176),
    14: Layout("Q6_K", 256, 210),
    30: Layout("BF16", 1, 2),
}


@dataclass(frozen=True)
class Tensor:
    """`shape` is row-major: the last dimension is the one that lies together in the file."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUF:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """Raises GGUFError if there is none of that name."""
        if name not in self.tensors:
            raise GGUFError(f"it has no tensor {name!r}: the file is damaged or of another kind")
        return self.tensors[name]

    def read(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes, as uint8. Raises GGUFError if the file has shrunk since."""
        content = np.fromfile(self.path, np.uint8, tensor.nbytes, offset=tensor.offset)
        if content.size != tensor.nbytes:
            raise GGUFError("the file was cut off while it was read")
        return content


def read_gguf(path: Path) -> GGUF:
    """The header and where each tensor lies. Raises GGUFError, OSError."""
    with path.open("rb") as file:
        header = _Header(file)
        if header.take(4) != b"GGUF":
            raise GGUFError("it does not begin like a GGUF")
        version = header.number("<I")
        if version not in (2, 3):
            raise GGUFError(f"it is of version {version}, and only 2 and 3 are read")
        tensor_count = header.count("<Q", at_least=24)
        key_count = header.count("<Q", at_least=13)
        metadata = {}
        for _ in range(key_count):
            key = header.string()
            metadata[key] = header.value(header.number("<I"))
        described = [_describe_tensor(header) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise GGUFError(f"its general.alignment is {alignment!r}")
        start = -(-file.tell() // alignment) * alignment
        tensors = {}
        for tensor in described:
            offset = start + tensor.offset
            if offset + tensor.nbytes > header.size:
                raise GGUFError(
                    f"it is cut off: {tensor.name} should end at byte {offset + tensor.nbytes:,}, "
                    f"and the file has {header.size:,}"
                )
            tensors[tensor.name] = Tensor(
                tensor.name, tensor.shape, tensor.layout, offset, tensor.nbytes
            )
    return GGUF(path, metadata, tensors)


def _describe_tensor(header: "_Header") -> Tensor:
    """A tensor whose `offset` still counts from the start of the tensors' bytes."""
    name = header.string()
    dimensions = header.number("<I")
    if not 1 <= dimensions <= 4:
        raise GGUFError(f"its tensor {name!r} has {dimensions} dimensions")
    shape = tuple(header.number("<Q") for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise GGUFError(f"its tensor {name!r} is empty")
    kind = header.number("<I")
    offset = header.number("<Q")
    layout = LAYOUTS.get(kind)
    if layout is None:
        known = ", ".join(layout.name for layout in LAYOUTS.values())
        raise GGUFError(f"its tensor {name!r} is of type {kind}, and only {known} are read")
    if shape[-1] % layout.elements:
        raise GGUFError(f"its tensor {name!r} of shape {shape} is no whole number of blocks")
    nbytes = math.prod(shape) // layout.elements * layout.nbytes
    return Tensor(name, shape, layout, offset, nbytes)


# Type numbers of values, and their formats as both struct and numpy write them.
NUMBERS = {
    0: "B",
    1: "b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    10: "<Q",
    11: "<q",
    12: "<d",
}
BOOL, STRING, ARRAY = 7, 8, 9


class _Header:
    """The part before the tensors' bytes, read from front to back."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.size = os.fstat(file.fileno()).st_size

    def take(self, nbytes: int) -> bytes:
        # An absurd length must not be asked of the system's memory.
        content = self.file.read(nbytes) if nbytes <= self.size else b""
        if len(content) != nbytes:
            raise GGUFError("it is cut off, or damaged, before its tensors begin")
        return content

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def count(self, kind: str, at_least: int) -> int:
        """A number of things that follow, each of at least so many bytes."""
        count = self.number(kind)
        if count * at_least > self.size - self.file.tell():
            raise GGUFError("it is cut off, or damaged, before its tensors begin")
        return count

    def string(self) -> str:
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError:
            raise GGUFError("it has text that is not UTF-8: the file is damaged") from None

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == BOOL:
            return self.number("<B") != 0
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        raise GGUFError(f"it has a value of the unknown type {kind}: the file is damaged")

    def array(self) -> list[Any]:
        kind = self.number("<I")
        if kind == STRING:
            return [self.string() for _ in range(self.count("<Q", at_least=8))]
        if kind == BOOL:
            return [byte != 0 for byte in self.take(self.number("<Q"))]
        if kind not in NUMBERS:
            raise GGUFError(f"it has an array of the unknown type {kind}: the file is damaged")
        number = np.dtype(NUMBERS[kind])
        return np.frombuffer(self.take(self.number("<Q") * number.itemsize), number).tolist()
