"""Tokenizers built from a GGUF's metadata."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import tiny_metadata
from tokenizers import Tokenizer

from tui.engine.gguf import GGUFError
from tui.engine.gguf_tokenizer import write_tokenizer


def build(folder, **changes) -> Tokenizer:
    metadata = tiny_metadata() | {key.replace("__", "."): value for key, value in changes.items()}
    write_tokenizer(metadata, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("tokenizer"))


@settings(deadline=None)
@given(text=st.text())
def test_any_text_comes_back(byte_level, text):
    ids = byte_level.encode(text).ids
    assert byte_level.decode(ids, skip_special_tokens=False) == text


def test_merges_and_special_tokens(byte_level):
    assert byte_level.encode("hello hello").tokens == ["hello", "Ġhello"]
    assert byte_level.encode("<|im_start|>hello<|im_end|>").ids == [1, 262, 2]
    assert byte_level.decode([1, 262, 2]) == "hello"


SPLITS = {
    "smollm": [" the", " ", "1", "2", "3", "4", "'ll", "\n\n  ", " x"],
    "gpt-2": [" the", " 1234", "'ll", "\n\n  ", " x"],
    "llama-bpe": [" the", " ", "123", "4", "'ll", "\n\n", "  ", " x"],
    "qwen2": [" the", " ", "1", "2", "3", "4", "'ll", "\n\n", "  ", " x"],
    "tekken": [" the", " ", "1", "2", "3", "4", "'ll", "\n\n", "  ", " x"],
}


@pytest.mark.parametrize("name", SPLITS)
def test_text_is_split_as_the_name_says(tmp_path, name):
    tokenizer = build(tmp_path, tokenizer__ggml__pre=name)
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(" the 1234'll\n\n   x")
    assert [tokenizer.decoder.decode([piece]) for piece, _ in pieces] == SPLITS[name]


def test_a_beginning_is_put_where_the_file_says_so(tmp_path):
    tokenizer = build(tmp_path, tokenizer__ggml__add_bos_token=True)
    assert tokenizer.encode("hello").ids == [1, 262]
    assert tokenizer.encode("hello", add_special_tokens=False).ids == [262]


SENTENCEPIECE = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES = {"▁": -9, "a": -7, "b": -8, "c": -8.5, "ab": -1, "▁a": -2, "bc": -3, "▁ab": -4, "abc": -5}


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> Tokenizer:
    return build(
        tmp_path_factory.mktemp("tokenizer"),
        tokenizer__ggml__model="llama",
        tokenizer__ggml__tokens=[*SENTENCEPIECE, *PIECES],
        tokenizer__ggml__scores=[0.0] * len(SENTENCEPIECE) + list(PIECES.values()),
        tokenizer__ggml__token_type=[2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    )


def test_sentencepiece_merges_the_best_score_first(sentencepiece):
    assert sentencepiece.encode("ab", add_special_tokens=False).tokens == ["▁ab"]
    # "ab" scores best, so "▁a" and "bc" never come to be; then "▁ab" is better than "abc".
    assert sentencepiece.encode("abc", add_special_tokens=False).tokens == ["▁ab", "c"]
    assert sentencepiece.encode("ab bc", add_special_tokens=False).tokens == ["▁ab", "▁", "bc"]
    assert sentencepiece.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert sentencepiece.encode("ab").ids[0] == 1


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_any_text_comes_back_from_sentencepiece(sentencepiece, text):
    if "<" not in text:
        assert sentencepiece.decode(sentencepiece.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__ggml__pre": "martian"}, "'martian'"),
        ({"tokenizer__ggml__model": "bert"}, "'bert'"),
        ({"tokenizer__ggml__tokens": ["a", "a"], "tokenizer__ggml__token_type": [1, 1]}, "twice"),
        ({"tokenizer__ggml__merges": ["x yz"]}, "merges"),
        ({"tokenizer__ggml__merges": ["x"]}, "damaged"),
        ({"tokenizer__ggml__token_type": [1]}, "token types"),
        ({"tokenizer__ggml__tokens": 3}, "no tokenizer"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path, changes, words):
    with pytest.raises(GGUFError, match=words):
        build(tmp_path, **changes)
