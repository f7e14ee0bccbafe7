"""What methods cost and how far they err, as `methods` tells it."""

import json

import pytest

from kvcore.bench import methods
from kvcore.methods import METHODS


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(methods, "METHODS", {name: METHODS[name] for name in names})


def test_every_method_has_a_row_with_its_bits_and_those_that_it_really_takes() -> None:
    rows = list(methods.rows(measure=False))
    assert {row.method for row in rows} == set(METHODS)
    for row in rows:
        for side in (row.keys, row.values):
            # comm_vq has whole stages of six bits only, so it may stay a little below.
            assert side is None or row.bits - 0.13 < side.real_bits < row.bits + 2
            assert side is None or side.mse is None
    lines = methods.table(rows)
    assert [line.split()[0] for line in lines[1 : 1 + len(METHODS)]] == list(METHODS)
    default = next(line for line in lines if line.startswith("turboquant_mse"))
    assert "1.25-8.25" in default and " none " in default


def test_measured_bits_are_the_methods_own_count_and_errors_fall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "turboquant_mse")
    rows = list(methods.rows(measure=True))
    for row in rows:
        for side in (row.keys, row.values):
            assert side is not None
            assert side.encoded_bits == pytest.approx(side.real_bits)
    errors = [row.values.mse for row in rows if row.values]
    assert errors == sorted(errors, reverse=True)
    # Lloyd-Max on normal coordinates; keeping the norm or being unbiased costs a little more.
    four = rows[3].keys
    assert four is not None and 0.0085 < four.mse < 0.0105
    assert four.cosine == pytest.approx(1 - four.mse / 2, abs=1e-4)


def test_methods_that_learn_do_so_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "spectral")
    monkeypatch.setattr(methods, "LEARNT_TOKENS", 256)
    blank = {row.bits: row for row in methods.rows(measure=False)}
    methods._sample.cache_clear()
    for row in methods.rows(measure=True):
        assert row.keys is not None and row.values is not None
        assert row.keys.real_bits == blank[row.bits].keys.real_bits
        assert row.keys.encoded_bits == pytest.approx(row.keys.real_bits)
    methods._sample.cache_clear()


def test_a_side_that_is_not_served_is_shown_as_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "comm_vq")
    assert methods.main([]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[3:6] == ["–", "–", "needed"]
    assert methods.main(["--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["calibrated"] and found["value_bits"] is None
    assert all(each["values"] is None for each in found["by_bits"])


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if not each.calibrated])
def test_each_methods_count_is_what_encoding_gives(name: str) -> None:
    method = METHODS[name]
    sides = (("keys", method.key_bits), ("values", method.value_bits))
    for side, limits in sides:
        if limits:
            bits = max(limits[0], min(4, limits[1]))
            found = methods._figures(method, side, bits, measure=True)
            assert found is not None and found.mse is not None
            assert found.encoded_bits == pytest.approx(found.real_bits)
            assert found.mse < 1
