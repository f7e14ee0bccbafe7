import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tui import paths, settings
from tui.settings import Settings, SettingsError
from tui.sizes import parse_size

EVERYTHING = """\
theme = "day"
fps = 12
ascii = true
model = "some/model"
system = "Be brief."
temperature = 0.25
top_p = 1
max_tokens = 64
seed = 7
method = "turboquant_mse"
key_bits = 4
value_bits = 3
window = 64
sinks = 0
artefact = "some/folder"
memory_limit = "1.5G"
kv_limit = 11534336
policy = "hard"
"""


def load(text: str) -> Settings:
    paths.settings().parent.mkdir(parents=True, exist_ok=True)
    paths.settings().write_text(text)
    return settings.load()


def test_without_a_file_all_is_as_shipped() -> None:
    assert settings.load() == Settings()


def test_every_setting_can_be_set() -> None:
    chosen = load(EVERYTHING)
    assert EVERYTHING.count("=") == len(Settings.__struct_fields__)
    assert all(
        getattr(chosen, name) != getattr(Settings(), name)
        for name in Settings.__struct_fields__
        if name != "method"
    )
    assert chosen.memory_limit == 1.5 * 1024**3
    setup = chosen.setup()
    assert (setup.cache.key_bits, setup.sampling.seed, setup.limits.kv) == (4, 7, 11 << 20)


def test_every_setting_says_what_it_is_and_may_hold() -> None:
    for name, meta in settings.fields().items():
        assert meta.title and meta.description, name


def test_what_is_saved_is_read_again() -> None:
    chosen = load(EVERYTHING)
    settings.save(chosen)
    assert settings.load() == chosen
    settings.save(Settings())
    assert paths.settings().read_text() == ""


def test_a_full_disk_leaves_the_settings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    load(EVERYTHING)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(settings.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        settings.save(Settings())
    assert paths.settings().read_text() == EVERYTHING
    assert list(paths.settings().parent.iterdir()) == [paths.settings()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nthem = 1", ("line 2: them is no setting", "'theme'")),
        ("fps = 90", ("line 1: fps", "1 to 60", "90")),
        ('fps = "30"', ("fps", "whole number")),
        ("fps = 1.5", ("fps", "whole number")),
        ("theme = [broken", ("not TOML", "line 1")),
        ("ascii = 1", ("ascii", "true or false")),
        ("temperature = nan", ("temperature", "0 to 5")),
        ("temperature = -0.1", ("temperature", "0 to 5")),
        ("top_p = 0", ("top_p", "above 0")),
        ("max_tokens = 0", ("max_tokens", "above 0")),
        (f"max_tokens = {10**30}", ("max_tokens",)),
        ("key_bits = 17", ("line 1: key_bits", "1 to 8", "17")),
        ('method = "turbokwant"', ("turbokwant", "'turboquant_mse'")),
        ('policy = "soft"', ("policy", "careful", "soft")),
        ('kv_limit = "much"', ("kv_limit", "900M", "much")),
        ("kv_limit = 0", ("kv_limit",)),
        ("kv_limit = 1.5", ("kv_limit", "200M")),
        ('model = ""', ("model",)),
        ("[model]\nx = 1", ("model",)),
        ("theme = 1979-05-27", ("theme",)),
        ("x = " + "[" * 9999, ("not TOML",)),
        ('"\\u0000" = 1', ("\\x00",)),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as error:
        load(text)
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    assert all(word in sentence for word in (str(paths.settings()), *words))


def test_a_file_that_is_no_text() -> None:
    load("")
    paths.settings().write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        settings.load()
    with pytest.raises(SettingsError, match="no settings file"):
        settings.load(Path("/no/such.toml"))
    with pytest.raises(SettingsError, match="Cannot read"):
        settings.load(paths.settings().parent)


@given(
    at=st.integers(0, len(EVERYTHING)),
    cut=st.integers(0, 20),
    junk=st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from(string.punctuation)),
)
@example(at=0, cut=0, junk="theme.x.y = 1\n")
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_mutation_gives_anything_but_a_sentence(at: int, cut: int, junk: str) -> None:
    try:
        load(EVERYTHING[:at] + junk + EVERYTHING[at + cut :])
    except SettingsError as error:
        assert str(paths.settings()) in str(error)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"key_bits": "17"}, ("--key-bits", "1 to 8")),
        ({"key_bits": "many"}, ("--key-bits", "whole number")),
        ({"temperature": "nan"}, ("--temperature",)),
        ({"memory_limit": "-1G"}, ("--memory-limit", "900M")),
        ({"method": "turbokwant"}, ("--method", "'turboquant_mse'")),
        ({"policy": "soft"}, ("--policy", "balanced")),
    ],
)
def test_flags_are_checked_as_the_file_is(flags: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as error:
        settings.override(Settings(), flags)
    assert all(word in str(error.value) for word in words)


def test_flags_come_before_the_file() -> None:
    chosen = settings.override(load(EVERYTHING), {"key_bits": "5", "kv_limit": "2K"})
    assert (chosen.key_bits, chosen.value_bits, chosen.kv_limit) == (5, 3, 2048)


def test_bits_that_are_not_set_are_as_the_method_has_them() -> None:
    assert (Settings().setup().cache.key_bits, Settings().setup().cache.value_bits) == (6, 4)
    chosen = settings.override(Settings(), {"method": "fp16"})
    assert (chosen.setup().cache.key_bits, chosen.setup().cache.value_bits) == (16, 16)
    with pytest.raises(SettingsError, match="--key-bits must be a whole number, 16, not 6"):
        settings.override(Settings(), {"method": "fp16", "key_bits": "6"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("900M", 900 << 20), ("1.5G", 3 << 29), ("4096", 4096), (" 2 GiB ", 2 << 30), ("1kb", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.text())
@example("9" * 400)
@example("0")
@example("0.1B")
def test_what_is_no_size_gives_a_sentence(text: str) -> None:
    try:
        assert parse_size(text) > 0
    except ValueError as error:
        assert "900M" in str(error)
