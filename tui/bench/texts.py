"""Answers to recite: what models write, and what is hardest to draw while it streams."""

ITEMS = 250

_PARAGRAPH = (
    "The cache grows with **every token** and nothing of it is given back; `keys` tolerate four "
    "bits once they are rotated, values need more care in the first two layers, and the ratio "
    "moves with the length of the window.\n\n"
)
_LIST = "".join(
    f"- item {number}: keys at **{number % 5 + 2} bits**, `{number * 37 % 1000}` bytes a token\n"
    for number in range(1, ITEMS + 1)
)
_TABLE = "| layer | bits | bytes | share |\n|---|--:|--:|---|\n" + "".join(
    f"| {number} | {number % 5 + 2} | {number * 4096:,} | `{number % 100}%` |\n"
    for number in range(1, ITEMS + 1)
)
_CODE = (
    "```python\n"
    + "".join(
        f"def size_{number}(layers: int, heads: int = {number}) -> int:\n"
        f'    """Bytes of {number} tokens."""\n'
        f"    return layers * heads * {number}  # per token\n\n"
        for number in range(1, ITEMS // 3)
    )
    + "```\n"
)
_SECTION = (
    "## What it costs\n\n"
    + _PARAGRAPH
    + "1. measure first\n2. then **lower**\n   - keys before values\n   - middle layers first\n\n"
    + "```python\nsize = layers * heads * head_dim * tokens * bits // 8\n```\n\n"
    + "| bits | bytes |\n|--:|--:|\n| 16 | 72.0M |\n| 4 | 20.3M |\n\n"
    + "> Unknown is shown as a dash, never as a guess.\n\n"
    + _PARAGRAPH
)

TEXTS = {"list": _LIST, "table": _TABLE, "code": _CODE, "mixed": _SECTION * 8}
