"""The tokenizer that a GGUF describes, as Hugging Face's tokenizer.json and its config.

GGUF keeps the vocabulary and the merges, and only a name for how text is split before merging.
Names and patterns: github.com/ggml-org/llama.cpp, src/llama-vocab.cpp. A name that is not known
here is refused: splitting wrongly would still give tokens, only worse ones.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tui.engine.gguf import GGUFError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"\p{N}" + _REST
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "tekken": _TEKKEN,
}
_GPT2 = {"gpt-2", "mpt", "olmo", "jais", "trillion"}
_GPT2_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"}
# In these, a word that is a token as it stands is never merged from its parts, and a text
# begins with the token for its beginning unless the file says otherwise.
_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. Raises GGUFError."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise GGUFError("it carries no tokenizer")
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise GGUFError("its tokenizer has not as many token types as tokens: it is damaged")
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif model == "llama":
        tokenizer = _sentencepiece(metadata, tokens, kinds)
    else:
        raise GGUFError(f"its tokenizer is of the kind {model!r}, and only gpt2 and llama are read")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
    names = _named_tokens(metadata, tokens)
    _surround(tokenizer, metadata, names)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **names,
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    """BPE over bytes written as printable characters, as GPT-2 began it."""
    split = metadata.get("tokenizer.ggml.pre")
    pairs = []
    for merge in metadata.get("tokenizer.ggml.merges") or ():
        left, space, right = str(merge).partition(" ")
        if not space:
            raise GGUFError(f"its tokenizer has the merge {merge!r}: the file is damaged")
        pairs.append((left, right))
    tokenizer = Tokenizer(_bpe(tokens, pairs, ignore_merges=split in _WHOLE_WORDS_FIRST))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split not in _PATTERNS)
    if split in _PATTERNS:
        pattern = pre_tokenizers.Split(Regex(_PATTERNS[split]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pattern, byte_level])
    elif split in _GPT2_SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif split in _GPT2:
        tokenizer.pre_tokenizer = byte_level
    else:
        known = ", ".join(sorted({*_PATTERNS, *_GPT2, *_GPT2_SINGLE_DIGITS}))
        raise GGUFError(
            f"its tokenizer splits text by {split!r}, and only these are known: {known}"
        )
    if _PATTERNS.get(split) is _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """SentencePiece's BPE: ▁ for space, bytes as <0x41>, merges by the score of what they make."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise GGUFError("its tokenizer has not as many scores as tokens: it is damaged")
    mergeable = {
        token for token, kind in zip(tokens, kinds, strict=True) if kind in (NORMAL, USER_DEFINED)
    }
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        if token in mergeable:
            for middle in range(1, len(token)):
                pair = token[:middle], token[middle:]
                if pair[0] in mergeable and pair[1] in mergeable:
                    merges.append((-score, pair))
    # Equal scores keep the order of the vocabulary.
    merges.sort(key=lambda merge: merge[0])
    unknown = next((t for t, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    tokenizer = Tokenizer(
        _bpe(
            tokens,
            [pair for _, pair in merges],
            byte_fallback=True,
            fuse_unk=True,
            unk_token=unknown,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        undo.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(undo)
    if unknown is not None:
        tokenizer.add_special_tokens([AddedToken(unknown, normalized=False)])
    return tokenizer


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise GGUFError("its tokenizer has the same token twice: the file is damaged")
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:
        # The library's own errors have no class of their own.
        raise GGUFError(f"its tokenizer's merges do not fit its vocabulary ({error})") from None


def _named_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    """The tokens that have a role, by the names that transformers gives the roles."""
    named = {}
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    for role, name in roles.items():
        token = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            named[f"{name}_token"] = tokens[token]
    return named


def _surround(tokenizer: Tokenizer, metadata: Mapping[str, Any], names: dict[str, str]) -> None:
    """Have the tokenizer put the tokens for beginning and end around a text, where it should."""
    sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    by_default = sentencepiece or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST
    before, after = [], []
    if metadata.get("tokenizer.ggml.add_bos_token", by_default) and "bos_token" in names:
        before.append(names["bos_token"])
    if metadata.get("tokenizer.ggml.add_eos_token", False) and "eos_token" in names:
        after.append(names["eos_token"])
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in before + after],
        )
