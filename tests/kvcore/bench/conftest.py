from pathlib import Path

import pytest

WORDS = "the cache grows with every token and nothing is given back until memory runs low ; "


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model, as a folder."""
    import sys

    sys.path.append(str(Path(__file__).parents[2] / "engine"))
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def loaded(folder: Path):
    from mlx_lm import load

    return load(str(folder))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 40, encoding="utf-8")
    return path
