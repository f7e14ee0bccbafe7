"""`bench quality` and `bench memory`, with the engine's own way to load a model."""

import sys
from typing import Any

from kvcore.bench.__main__ import main
from tui.engine.errors import ModelError
from tui.engine.models import load
from tui.exits import MODEL


def load_for_bench(name: str) -> tuple[Any, Any]:
    loaded = load(name, progress=lambda event: None, cancelled=lambda: False)
    return loaded.model, loaded.tokenizer


if __name__ == "__main__":
    try:
        sys.exit(main(load=load_for_bench, module="tui.bench.model"))
    except ModelError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(MODEL)
