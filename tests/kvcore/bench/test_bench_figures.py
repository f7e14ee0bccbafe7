"""Figures: what is drawn of the rows, and what is said where matplotlib is not there."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvcore.bench import __main__ as bench
from kvcore.bench import figures, rows

PLAIN = rows.Row(
    name="fp16",
    setting="tiny, 1 x 400 tokens",
    tokens=400,
    perplexity=20.0,
    kl=0.0,
    kl_by_quarter=(0.0, 0.0, 0.0, 0.0),
    flips=0.0,
    held=1.0,
    nbytes_by_quarter=(100.0, 200.0, 300.0, 400.0),
    continuation=16,
    alike=16.0,
    needles=1.0,
    needle_log_probability=(-1.0, -2.0, -3.0),
)
PACKED = replace(
    PLAIN,
    name="vecinfer@/some/folder:2/2",
    kl=0.03,
    kl_by_quarter=(0.0, 0.01, 0.05, 0.06),
    held=0.2,
    alike=3.5,
    needle_log_probability=(-1.5, -2.0, -3.25),
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("fp16", "fp16"),
        ("6/4", "6/4"),
        ("kivi:2/2", "kivi:2/2"),
        ("lowered:4/3", "lowered:4/3"),
        ("vecinfer@/some/folder:2/2", "vecinfer:2/2"),
        ("comm_vq@folder", "comm_vq:folder"),
        ("ratequant:/some/folder:3.3", "ratequant:3.3"),
    ],
)
def test_labels_leave_out_folders(name: str, label: str) -> None:
    assert figures.label(replace(PLAIN, name=name)) == label


def test_each_figure_and_the_sheet_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = figures.draw([PLAIN, PACKED], tmp_path / "new")
    names = [figure.__name__ for figure in figures.FIGURES]
    assert [path.stem for path in paths] == [*names, "sheet"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_sheet_has_every_figure_with_something_in_it() -> None:
    pytest.importorskip("matplotlib")
    sheet = figures.sheet([PLAIN, PACKED])
    shown = [axes for axes in sheet.axes if axes.axison]
    assert len(shown) == len(figures.FIGURES)
    assert all(axes.get_title() and axes.has_data() for axes in shown)


def test_figures_show_the_rows() -> None:
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    figures.needles_by_depth(axes, [PLAIN, PACKED])
    assert list(axes.lines[0].get_ydata()) == [-0.5, 0.0, -0.25]
    axes.clear()
    figures.memory_against_length(axes, [PLAIN, PACKED])
    assert list(axes.lines[0].get_xdata()) == [100, 200, 300, 400]


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bare = [
        replace(row, alike=None, needles=None, needle_log_probability=()) for row in (PLAIN, PACKED)
    ]
    drawn = {path.stem for path in figures.draw(bare, tmp_path)}
    assert drawn == {"quality_against_bytes", "kl_by_quarter", "memory_against_length", "sheet"}


def test_without_matplotlib_a_sentence_says_how_to_get_it(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    argv = ["quality", "--text", "none.txt", "--figures", str(tmp_path / "figures")]
    assert bench.main(argv) == 2
    assert 'pip install "veloxquant-tui[bench]"' in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()


def test_rows_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    bare = replace(PACKED, alike=None, needles=None, needle_log_probability=())
    rows.write(path, [PLAIN, PACKED, bare])
    assert rows.read(path) == [PLAIN, PACKED, bare]
