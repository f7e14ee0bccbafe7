import pytest
from mlx_lm.utils import load
from tiny_model import CONTEXT, write_tiny_model

from tui.engine.models import Loaded
from tui.messages import ModelInfo


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny(tiny_folder) -> Loaded:
    model, tokenizer = load(str(tiny_folder))
    info = ModelInfo(name="tiny", context=CONTEXT, weights=0, layers=4, backend="CPU")
    return Loaded(model, tokenizer, info)
