"""Makes what a terminal would obey readable instead.

Everything that a model or a file says passes through here before it is drawn, stored or copied.
Escape sequences could move the cursor, set the title or write the clipboard; bidirectional
controls make text read in another order than it is (Boucher & Anderson 2021, "Trojan Source").
"""

CONTROL_PICTURES = 0x2400
BIDI = (0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x2069)
SEPARATORS = (0x2028, 0x2029)

_table: dict[int, str] = {
    code: chr(CONTROL_PICTURES + code) for code in range(0x20) if chr(code) not in "\n\t"
}
_table[0x7F] = "␡"
_table |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
_table |= {code: f"\\u{code:04x}" for code in (*BIDI, *SEPARATORS, *range(0xD800, 0xE000))}


def visible(text: str) -> str:
    """The text with control characters, bidirectional controls and lone surrogates spelt out.

    Newlines and tabs stay; "\\r\\n" becomes "\\n". The result can always be encoded as UTF-8.
    """
    return text.replace("\r\n", "\n").translate(_table)
