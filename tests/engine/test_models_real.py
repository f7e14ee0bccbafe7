"""The built-in model itself, in the user's own cache: fetched once, then kept."""

import json
import subprocess
import sys

import pytest

from tui.engine import blas

pytestmark = pytest.mark.model

ASK = """
import json
from mlx_lm import generate
from tui.engine import models

loaded = models.load("smollm2", lambda event: None, lambda: False)
messages = [{"role": "user", "content": "What is the capital of France?"}]
prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
answer = generate(loaded.model, loaded.tokenizer, prompt, max_tokens=16)
digits = loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("in 2024"))
info = loaded.info
print(json.dumps([answer, digits, info.context, info.layers, info.weights, info.backend]))
"""


def test_it_answers():
    # In a process of its own, as the engine is, so that a preloaded BLAS is used.
    child = subprocess.run(
        [sys.executable, "-c", ASK],
        env=blas.engine_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer, digits, context, layers, weights, backend = json.loads(child.stdout)
    assert "Paris" in answer
    assert digits == ["in", "Ġ", "2", "0", "2", "4"]
    assert (context, layers) == (8192, 30)
    # 134.5 million parameters: 4 bytes each on a CPU, about 5.85 bits each as shipped.
    assert weights == pytest.approx(4 * 134.5e6 if "CPU" in backend else 98e6, rel=0.02)
    if blas.find_openblas() is not None and "CPU" in backend:
        assert "OpenBLAS" in backend
