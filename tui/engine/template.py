"""From turns to the tokens that the model is given."""

from collections.abc import Iterable
from typing import Any

from jinja2 import TemplateError

from tui.messages import Turn


def render(tokenizer: Any, turns: Iterable[Turn]) -> list[int]:
    """The chat as tokens, up to where the next answer begins.

    A model without a chat template continues plain text. Raises ValueError with a sentence where
    the template refuses the chat.
    """
    messages = _alternating(turns)
    if not tokenizer.has_chat_template:
        return tokenizer.encode("\n\n".join(message["content"] for message in messages))
    try:
        return _apply(tokenizer, messages)
    except TemplateError as error:
        if messages[0]["role"] != "system":
            raise ValueError(f"The model's chat template refuses this chat: {error}.") from error
    # Some templates know no system role: the first question carries its text.
    return render(
        tokenizer,
        [Turn("user", message["content"]) for message in messages[:2]]
        + [Turn(message["role"], message["content"]) for message in messages[2:]],
    )


def _apply(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))


def _alternating(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Neighbours of one role become one message: a question whose answer never came is followed
    by the next question, and templates want the roles to take turns."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if messages and messages[-1]["role"] == turn.role:
            messages[-1]["content"] += "\n\n" + turn.text
        else:
            messages.append({"role": turn.role, "content": turn.text})
    return messages
