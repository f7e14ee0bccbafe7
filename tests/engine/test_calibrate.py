"""`calibrate` on a tiny model in a folder: what it writes packs that model's caches."""

from pathlib import Path

import mlx.core as mx
import pytest

from kvcore import KVCacheBuilder, KVCacheConfig
from kvcore.attach import layer_reports
from tui import calibrate
from tui.arguments import UsageError
from tui.exits import DONE, FAILED, MODEL


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} bottles of milk, then {n * n % 97} more. " for n in range(120)))
    return path


def run(model, folder: Path, text: Path, *more: str) -> int:
    return calibrate.run([str(model), "-o", str(folder), "--text", str(text), *more])


def test_a_sensitivity_gives_each_layer_its_bits(tiny, tiny_folder, tmp_path, text, capsys) -> None:
    folder = tmp_path / "sensitivity"
    flags = ("--method", "ratequant", "--tokens", "600", "--context", "512", "--windows", "1")
    assert run(tiny_folder, folder, text, *flags) == DONE
    assert capsys.readouterr().out == f"{folder}: ratequant of {tiny_folder}, from 600 tokens.\n"
    config = KVCacheConfig(sensitivity=str(folder), mean_bits=4)
    caches = KVCacheBuilder.for_model(tiny.model, config)
    tiny.model(mx.array([list(range(300))]) % 50, cache=caches)
    half = sum(cache.half_nbytes / cache.offset for cache in caches)
    assert 0.9 * half / 4 < sum(cache.token_nbytes for cache in caches) <= half / 4 + len(caches)
    # Another run takes the artefact's place; other files are left alone.
    assert run(tiny_folder, folder, text, *flags) == DONE
    assert run(tiny_folder, tmp_path, text, *flags) == FAILED
    assert "holds other files" in capsys.readouterr().err


def test_a_method_learns_its_codes(tiny, tiny_folder, tmp_path, text) -> None:
    folder = tmp_path / "spectral"
    flags = ("--method", "spectral", "--key-bits", "3", "--value-bits", "2", "--tokens", "600")
    more = ("--keep", "256", "--conditioning", "none", "--seed", "7")
    assert run(tiny_folder, folder, text, *flags, *more) == DONE
    config = KVCacheConfig(
        method="spectral",
        key_bits=3,
        value_bits=2,
        conditioning="none",
        seed=7,
        artefact=str(folder),
    )
    caches = KVCacheBuilder.for_model(tiny.model, config)
    assert [(r.key_bits, r.value_bits) for r in layer_reports(caches)] == [(3, 2)] * len(caches)


def test_what_is_wrong_is_told_in_a_sentence(tiny_folder, tmp_path, text, capsys) -> None:
    folder = tmp_path / "new"
    flags = ("--method", "ratequant")
    with pytest.raises(UsageError, match="There is no text file"):
        run(tiny_folder, folder, tmp_path / "none.txt", *flags)
    with pytest.raises(UsageError, match=r"--windows must be 1 or more, not 0"):
        run(tiny_folder, folder, text, *flags, "--windows", "0")
    assert run(tmp_path / "no-model", folder, text, *flags) == MODEL
    text.write_text("Too short.")
    assert run(tiny_folder, folder, text, *flags) == FAILED
    assert "are too short: at least" in capsys.readouterr().err
    assert not folder.exists()
