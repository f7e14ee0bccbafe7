import pytest
from mlx_lm.utils import load_tokenizer
from tiny_model import write_tiny_model

from tui.engine.template import render
from tui.messages import Turn

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% endfor %}"
)
SYSTEM = Turn("system", "Be brief.")


def rendered(folder, template, *turns: Turn) -> str:
    tokenizer = load_tokenizer(write_tiny_model(folder, template))
    return tokenizer.decode(render(tokenizer, turns))


def test_the_template_is_the_model_s_own(tmp_path, tiny):
    tokens = render(tiny.tokenizer, [SYSTEM, Turn("user", "Hi")])
    assert tiny.tokenizer.decode(tokens) == (
        "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    )


def test_a_question_without_an_answer_joins_the_next(tmp_path):
    text = rendered(tmp_path, NO_SYSTEM, Turn("user", "One?"), Turn("user", "Two?"))
    assert text == "[user]One?\n\nTwo?"


def test_a_template_without_a_system_role_gets_it_in_the_question(tmp_path):
    chat = (SYSTEM, Turn("user", "Hi"), Turn("assistant", "Ho"), Turn("user", "So?"))
    text = rendered(tmp_path, NO_SYSTEM, *chat)
    assert text == "[user]Be brief.\n\nHi[assistant]Ho[user]So?"


def test_a_template_that_refuses_the_chat_is_told(tmp_path):
    with pytest.raises(ValueError, match="refuses this chat: roles must alternate"):
        rendered(tmp_path, NO_SYSTEM, Turn("assistant", "Ho"), Turn("user", "Hi"))


def test_without_a_template_the_text_is_continued(tmp_path):
    text = rendered(tmp_path, None, Turn("user", "Once"), Turn("assistant", "upon"))
    assert text == "Once\n\nupon"
