"""`python -m kvcore.bench.methods`: what every method costs and, when asked, how far it errs.

Bits an element are those of a vector in a full block at head_dim 128, with its share of scales,
means and whatever else the method keeps. Errors are those on isotropic vectors of unit norm. A
method that learns does so here, on other such vectors, of which there is nothing to learn: its
error says what its codes can do, not what calibration on a model adds.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from typing import Literal

import mlx.core as mx

from kvcore.bitplanes import GROUP
from kvcore.codec import Codec
from kvcore.codecs import Side, comm_vq, make_codec, vecinfer
from kvcore.codes import BLOCK
from kvcore.layer_sample import LayerSample
from kvcore.methods import METHODS, Method, default_conditioning
from kvcore.rotary import Rotary

HEAD_DIM = 128
KV_HEADS = 8
"""That share what a method keeps for a token of all heads."""
TOKENS = 2 * BLOCK
LEARNT_TOKENS = 8 * BLOCK
"""Tokens of a head that calibrated methods learn from."""
UNKNOWN = "–"


@dataclass(frozen=True)
class Figures:
    """Of one side. `real_bits`: an element's, by the method's own count. The others are measured,
    None where that was not asked for: `encoded_bits` over the arrays that encoding gives; `mse`,
    mean squared distance of vectors of unit norm to what comes back; `cosine` between the two."""

    real_bits: float
    encoded_bits: float | None = None
    mse: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class Row:
    """A method at one number of bits; a side is None where it is not served at those."""

    method: str
    bits: int
    keys: Figures | None
    values: Figures | None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="veloxquant-tui methods", description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    found = rows(arguments.measure)
    if arguments.json:
        print(json.dumps(record(list(found)), indent=1))
    elif arguments.measure:
        for line in measured_table(found):
            print(line, flush=True)
    else:
        print("\n".join(table(list(found))))
    return 0


def rows(measure: bool) -> Iterator[Row]:
    """Every method at every number of bits that it has."""
    for method in METHODS.values():
        ranges = [limits for limits in (method.key_bits, method.value_bits) if limits]
        for bits in range(min(low for low, _ in ranges), max(high for _, high in ranges) + 1):
            row = Row(
                method.name,
                bits,
                _figures(method, "keys", bits, measure),
                _figures(method, "values", bits, measure),
            )
            if row.keys or row.values:
                yield row


def table(rows: Sequence[Row]) -> list[str]:
    """One line a method."""
    lines = [
        f"{'method':<17}{'key bits':<10}{'really':<14}{'value bits':<12}{'really':<14}"
        f"{'calibration':<13}for",
    ]
    for method in METHODS.values():
        own = [row for row in rows if row.method == method.name]
        keys, values = (
            [side.real_bits for side in sides if side]
            for sides in ([row.keys for row in own], [row.values for row in own])
        )
        lines.append(
            f"{method.name:<17}{_range(method.key_bits):<10}{_span(keys):<14}"
            f"{_range(method.value_bits):<12}{_span(values):<14}"
            f"{'needed' if method.calibrated else 'none':<13}{method.about}"
        )
    lines.append("")
    lines.append(f"Bits are those of an element at head_dim {HEAD_DIM}, really: all counted.")
    return lines


def measured_table(rows: Iterator[Row]) -> Iterator[str]:
    """One line a method and number of bits, as they are measured."""
    side = f"{'really':>8}{'MSE':>11}{'cosine':>9}"
    yield f"{'':<23}{'keys':^28}{'values':^28}"
    yield f"{'method':<17}{'bits':>6}{side}{side}"
    for row in rows:
        sides = "".join(map(_measured, (row.keys, row.values)))
        yield f"{row.method:<17}{row.bits:>6}{sides}".rstrip()


def record(rows: Sequence[Row]) -> list[dict]:
    """For JSON: each method, with its figures by bits."""
    return [
        asdict(method)
        | {
            "head_dim": HEAD_DIM,
            "by_bits": [
                {"bits": row.bits}
                | {
                    name: side and asdict(side)
                    for name, side in (("keys", row.keys), ("values", row.values))
                }
                for row in rows
                if row.method == method.name
            ],
        }
        for method in METHODS.values()
    ]


def _figures(
    method: Method, name: Literal["keys", "values"], bits: int, measure: bool
) -> Figures | None:
    limits = method.key_bits if name == "keys" else method.value_bits
    if limits is None or not limits[0] <= bits <= limits[1]:
        return None
    conditioning = default_conditioning(method.name) if name == "keys" else "none"
    side = Side(name, bits, conditioning=conditioning)
    try:
        if method.calibrated and measure:
            learn = import_module(f"kvcore.codecs.{method.name}").learn
            side = replace(side, learnt=learn(side, _sample()))
        elif method.calibrated:
            side = replace(side, learnt=_blank(method.name, bits))
        codec = make_codec(method.name, side)
    except ValueError:
        # A method need not have every width between its fewest and its most.
        return None
    real_bits = 8 * codec.token_nbytes(HEAD_DIM, bits) / HEAD_DIM
    return _measure(codec, bits, real_bits) if measure else Figures(real_bits)


def _measure(codec: Codec, bits: int, real_bits: float) -> Figures:
    vectors = _isotropic(TOKENS, seed=1)
    codes = codec.encode(vectors[None].astype(mx.float16), bits, 0)
    back = codec.decode(codes)[0]
    distance = float(mx.square(back - vectors).sum(axis=-1).mean())
    norm = mx.maximum(mx.sqrt(mx.square(back).sum(axis=-1)), 1e-20)
    cosine = float(((back * vectors).sum(axis=-1) / norm).mean())
    encoded_bits = 8 * sum(array.nbytes for array in codes.arrays()) / vectors.size
    return Figures(real_bits, encoded_bits, distance, cosine)


def _blank(method: str, bits: int) -> dict[str, mx.array]:
    """What the method would have learnt, with nothing in it: bytes depend on shapes alone, and
    learning takes minutes."""
    match method:
        case "vecinfer":
            dimensions, index_bits = vecinfer.LAYOUTS[bits]
            return {"codebook": mx.zeros((1 << index_bits, dimensions))}
        case "comm_vq":
            stages = comm_vq.stage_count(HEAD_DIM, bits)
            rotary = _rotary()
            return {
                "theta": mx.zeros((KV_HEADS, stages, 64, HEAD_DIM)),
                "order": rotary.order,
                "frequencies": rotary.frequencies,
            }
        case "spectral":
            basis = mx.broadcast_to(mx.eye(HEAD_DIM), (KV_HEADS, HEAD_DIM, HEAD_DIM))
            return {
                "encode": basis,
                "decode": basis,
                "mean": mx.zeros((KV_HEADS, HEAD_DIM)),
                "variance": mx.ones((KV_HEADS, HEAD_DIM // GROUP)),
            }
    raise NotImplementedError(f"nobody has said what {method} learns")


@cache
def _sample() -> LayerSample:
    """Isotropic keys and values of a model with the usual rotary embedding."""
    keys, values = (_isotropic(LEARNT_TOKENS, seed) for seed in (2, 3))
    moment = mx.broadcast_to(mx.eye(HEAD_DIM), (KV_HEADS, HEAD_DIM, HEAD_DIM))
    return LayerSample(keys, values, tuple(range(0, LEARNT_TOKENS, BLOCK)), moment, _rotary())


def _rotary() -> Rotary:
    return Rotary(mx.arange(HEAD_DIM), 10000.0 ** (-mx.arange(0, HEAD_DIM, 2) / HEAD_DIM))


def _isotropic(tokens: int, seed: int) -> mx.array:
    """Vectors of unit norm, float32 [kv_heads, tokens, head_dim]."""
    vectors = mx.random.normal((KV_HEADS, tokens, HEAD_DIM), key=mx.random.key(seed))
    return vectors / mx.sqrt(mx.square(vectors).sum(axis=-1, keepdims=True))


def _range(limits: tuple[int, int] | None) -> str:
    return UNKNOWN if limits is None else "-".join(map(str, dict.fromkeys(limits)))


def _span(bits: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{end:.2f}" for end in (min(bits), max(bits))) if bits else [UNKNOWN]
    return "-".join(ends)


def _measured(side: Figures | None) -> str:
    if side is None:
        return f"{UNKNOWN:>8}{UNKNOWN:>11}{UNKNOWN:>9}"
    return f"{side.encoded_bits:>8.3f}{side.mse:>11.3g}{side.cosine:>9.5f}"


def _process() -> int:
    try:
        code = main()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the table has left; Python would complain again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


if __name__ == "__main__":
    sys.exit(_process())
