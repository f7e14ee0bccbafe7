"""The quality benchmark on a tiny random model: what it measures, and going on with it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcore.bench import __main__ as bench
from kvcore.bench import kinds, needle, processes, quality, rows
from kvcore.methods import METHODS

WINDOW = [int(token) for token in np.random.default_rng(0).integers(0, 256, 512)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("6-4", "'6-4' is no cache"),
        ("", "'' is no cache"),
        ("kv_bits=5", "kv_bits=4 (mlx-lm's)"),
        ("kiwi:4/4", "did you mean 'kivi'"),
        ("kivi:9/4", "key_bits must be a whole number, 1 to 8"),
        ("vecinfer:2/2", "needs an artefact"),
    ],
)
def test_a_name_of_no_cache_is_told_in_a_sentence(name: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        kinds.parse(name)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "method", "bits"),
    [
        ("6/4", "turboquant_mse", (6, 4)),
        ("lowered:4/3", "turboquant_mse", (4, 3)),
        ("kivi:2/2", "kivi", (2, 2)),
        ("kivi", "kivi", (6, 4)),
    ],
)
def test_names_make_the_caches_that_they_say(name, method, bits, loaded) -> None:
    cache = kinds.parse(name)(loaded[0])[0]
    assert (cache.config.method, (cache.key_bits, cache.value_bits)) == (method, bits)


def test_quick_measures_every_method_that_needs_no_calibration() -> None:
    names = kinds.without_calibration()
    assert {"6/4", "kv_bits=4"} < set(names)
    for name in names:
        assert kinds.parse(name)
    methods = {name.partition(":")[0] for name in names} - {"6/4", "kv_bits=4"}
    assert methods == {m.name for m in METHODS.values() if not m.calibrated} - {"fp16"}


def test_the_models_own_cache_is_its_own_equal(loaded) -> None:
    seen = quality.measure(loaded[0], [WINDOW], kinds.parse("fp16"), 128, continuation=5)
    assert (seen.kl, seen.flips, seen.held, seen.alike) == (0, 0, 1, 5)
    quarter, *_, whole = seen.nbytes_by_quarter
    assert whole == 4 * quarter


def test_fewer_bits_are_smaller_and_worse_and_part_earlier(loaded) -> None:
    told: list[int] = []
    seen = [
        quality.measure(loaded[0], [WINDOW], kinds.parse(name), 128, 12, told.append)
        for name in ("6/4", "2/2")
    ]
    fine, coarse = seen
    assert 0 < fine.kl < coarse.kl and fine.flips < coarse.flips
    assert coarse.held < fine.held < 1
    assert fine.alike is not None and coarse.alike is not None
    assert 0 <= coarse.alike <= fine.alike <= 12
    assert sum(told) == 2 * len(WINDOW)
    # Nothing is packed in the first half: what differs there is the rounding to fp16 alone.
    assert fine.kl_by_quarter[:2] == pytest.approx(coarse.kl_by_quarter[:2])


def test_the_first_token_that_differs_is_found_whatever_comes_after(loaded, monkeypatch) -> None:
    model = loaded[0]
    script = iter([3, 3, 7, 7, 1, 2, 5, 5])
    monkeypatch.setattr(quality, "_read", lambda *_: quality.mx.eye(9)[next(script)][None])
    alike = quality._alike(model, ([], []), (quality.mx.eye(9)[4], quality.mx.eye(9)[4]), 10)
    assert alike == 3


def test_needles_lie_at_their_depths_and_are_the_same_each_time() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    filler = [[1] * 1000]
    made = needle.needles(filler, encode, 2)
    assert made == needle.needles(filler, encode, 2)
    assert [each.depth for each in made] == [*needle.DEPTHS, *needle.DEPTHS]
    for each in made:
        assert each.tokens[: round(each.depth * 1000)] == [1] * round(each.depth * 1000)
        told = bytes(token for token in each.tokens if token != 1).decode()
        answer = bytes(each.answer).decode()
        assert f" is{answer}.\n" in told and told.endswith(" is") and told.count(answer) == 1


def test_a_needle_is_scored_as_the_model_scores_the_answer(loaded) -> None:
    import mlx.core as mx

    model = loaded[0]
    one = needle.Needle(0.1, WINDOW[:300], [40, 41, 42])
    found = needle.measure(model, [one], kinds.parse("fp16"), 128)
    logits = model(mx.array([[*one.tokens, *one.answer]]))[0][len(one.tokens) - 1 : -1]
    expected = quality.log_softmax(logits)[mx.arange(3), mx.array(one.answer)].sum()
    assert found.needle_log_probability == pytest.approx((float(expected),), rel=1e-3)
    best = [int(mx.argmax(logits[0]))]
    assert needle.measure(model, [replace(one, answer=best)], kinds.parse("fp16"), 128).needles == 1


def arguments(folder: Path, text: Path, *more: str) -> list[str]:
    small = ["--windows", "1", "--tokens", "400", "--continuation", "2", "--needles", "1"]
    return ["quality", "--model", str(folder), "--text", str(text), *small, *more]


def test_rows_that_are_there_are_not_measured_again(folder, text, tmp_path, capsys, monkeypatch):
    path = tmp_path / "rows.csv"
    started = []
    run = processes.run
    monkeypatch.setattr(
        processes, "run", lambda command, report: started.append(command) or run(command, report)
    )
    first = arguments(folder, text, "--csv", str(path), "--caches", "4/2")
    assert bench.main(first) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in table[2:]] == ["fp16", "4/2"]
    assert len(started) == 2
    again = arguments(folder, text, "--csv", str(path), "--caches", "4/2,kivi:2/2")
    assert bench.main(again) == 0
    assert [command[command.index("--one") + 1] for command in started[2:]] == ["kivi:2/2"]
    assert capsys.readouterr().out.splitlines()[: len(table)] == table
    held = rows.read(path)
    assert [row.name for row in held] == ["fp16", "4/2", "kivi:2/2"]
    assert held[2].kl > held[1].kl > held[0].kl == 0
    # Other settings are other rows, and these stay.
    monkeypatch.setattr(processes, "run", lambda *_: (_ for _ in ()).throw(processes.Failed(3)))
    assert bench.main([*again, "--chunk", "64"]) == 3
    assert rows.read(path) == held


def test_a_file_that_is_no_csv_of_rows_is_refused(folder, text, tmp_path, capsys) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert bench.main(arguments(folder, text, "--csv", str(path))) == 2
    assert "holds no rows of this bench" in capsys.readouterr().err


def test_a_process_that_fails_is_told_by_its_code() -> None:
    with pytest.raises(processes.Failed) as raised:
        processes.run([sys.executable, "-c", "raise SystemExit(7)"], lambda *_: None)
    assert raised.value.code == 7


def test_the_bar_shows_all_caches_on_a_terminal_only() -> None:
    class Terminal:
        def __init__(self, is_one: bool) -> None:
            self.is_one, self.drawn = is_one, ""

        def isatty(self) -> bool:
            return self.is_one

        def write(self, text: str) -> None:
            self.drawn += text

        def flush(self) -> None:
            pass

    terminal, file = Terminal(True), Terminal(False)
    for out in (terminal, file):
        bar = processes.Bar(2, out)  # type: ignore[arg-type]
        bar.show(1, "kivi:2/2", 50, 100)
        bar.clear()
    assert "[###############.....] 2 of 2: kivi:2/2" in terminal.drawn
    assert terminal.drawn.endswith("\r\x1b[K") and file.drawn == ""


def test_what_a_signal_ends_is_told_and_the_others_are_measured(
    folder, text, capsys, monkeypatch
) -> None:
    run = processes.run

    def killed(command, report):
        if "4/2" in command[command.index("--one") :]:
            raise processes.Failed(-9)
        return run(command, report)

    monkeypatch.setattr(processes, "run", killed)
    assert bench.main(arguments(folder, text, "--caches", "4/2,2/2")) == 1
    printed = capsys.readouterr()
    assert "signal 9 ended 4/2" in printed.err
    assert [line.split()[1] for line in printed.out.splitlines()[2:]] == ["fp16", "2/2"]


def test_an_interruption_says_where_the_rows_are(folder, text, tmp_path, capsys, monkeypatch):
    def interrupted(command, report):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "run", interrupted)
    path = tmp_path / "rows.csv"
    assert bench.main(arguments(folder, text, "--csv", str(path))) == 130
    assert f"{path} has the rows so far" in capsys.readouterr().err
