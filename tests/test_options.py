"""Test options: texts are converted, and invalid ones are refused with the expected form."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from ipaddress import ip_network
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import ConfigError
from fyrehose.options import (
    boolean,
    build,
    count,
    counted,
    duration,
    moment,
    name,
    networks,
    one_of,
    option,
    shown_size,
    shown_value,
    size,
    suggestion,
)


@attrs.frozen(kw_only=True)
class Settings:
    """Settings with options of several types."""

    max_payload: int = option(16 << 20, size, "largest payload")
    idle: float = option(60.0, duration, "how long nobody may say anything")
    allow: tuple[Any, ...] = option((), networks, "who may come")
    tls: bool = option(False, boolean, "whether it is encrypted")
    guests: int = option(10, count, "how many may come", least=1)

    def __attrs_post_init__(self) -> None:
        if self.tls and not self.allow:
            raise ValueError("tls wants to know who is allowed")


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [
        (size, "0", 0),
        (size, "4096", 4096),
        (size, "64KiB", 64 << 10),
        (size, "64 kb", 64 << 10),
        (size, "16M", 16 << 20),
        (size, "1GiB", 1 << 30),
        (size, "2T", 2 << 40),
        (size, "7B", 7),
        (duration, "30", 30.0),
        (duration, "1.5s", 1.5),
        (duration, "250ms", 0.25),
        (duration, "5m", 300.0),
        (duration, "12 h", 43200.0),
        (duration, "7d", 604800.0),
        (count, " 12 ", 12),
        (boolean, "yes", True),
        (boolean, "TRUE", True),
        (boolean, "on", True),
        (boolean, "1", True),
        (boolean, "no", False),
        (boolean, "Off", False),
        (name, "ä" * 127, "ä" * 127),
        (networks, "", ()),
        (networks, "10.0.0.0/8, ::1", (ip_network("10.0.0.0/8"), ip_network("::1/128"))),
    ],
)
def test_valid_texts_are_converted(convert: Callable[[str], object], text: str, value: object) -> None:
    assert convert(text) == value


@pytest.mark.parametrize(
    ("convert", "text", "wanted"),
    [
        (size, "", "a size"),
        (size, "-1", "a size"),
        (size, "1.5M", "a size"),
        (size, "1X", "a size"),
        (duration, "soon", "a duration"),
        (duration, "-1s", "a duration"),
        (duration, "1w", "a duration"),
        (duration, "9" * 400 + "d", "a duration of at most 36500 days"),
        (count, "-1", "a whole number"),
        (count, "1e3", "a whole number"),
        (boolean, "maybe", "yes or no"),
        (name, "", "1 to 255 bytes"),
        (name, "ä" * 128, "1 to 255 bytes"),
        (networks, "10.0.0.1/8", "networks, for example"),
        (networks, "localhost", "networks, for example"),
    ],
)
def test_invalid_texts_are_refused_with_the_expected_form(
    convert: Callable[[str], object], text: str, wanted: str
) -> None:
    with pytest.raises(ValueError, match=wanted):
        convert(text)


@given(st.integers(0, 1 << 60), st.sampled_from(["", "K", "Mi", "GiB", "tb"]))
def test_sizes_are_exact_up_to_the_largest(n: int, unit: str) -> None:
    shift = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[unit[:1].lower()]
    n >>= shift
    assert size(f"{n}{unit}") == n << shift
    with pytest.raises(ValueError, match="at most 1048576 TiB"):
        size(f"{(1 << 60 - shift) + 1}{unit}")


def test_text_and_toml_have_the_same_result() -> None:
    from_text = build(
        Settings, "protocol", {"max-payload": "4MiB", "idle": "5m", "allow": "10.0.0.0/8,::1", "tls": "yes"}
    )
    from_toml = build(
        Settings, "protocol", {"max_payload": 4 << 20, "idle": 300, "allow": ["10.0.0.0/8", "::1"], "tls": True}
    )
    assert from_text == from_toml
    assert build(Settings, "protocol", {}) == Settings()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"max-payloads": "1"},
            "unknown option 'max-payloads' of protocol; did you mean max-payload?",
        ),
        (
            {"max_payload": "lots"},
            "invalid value 'lots' for option protocol.max-payload: expected a size, for example 65536, 64KiB or 16MiB",
        ),
        (
            {"allow": ["here"]},
            "invalid value 'here' for option protocol.allow: expected networks, for example 10.0.0.0/8,192.168.1.7/32",
        ),
        ({"guests": 0}, "invalid options of protocol: guests must be at least 1, not 0"),
        ({"tls": "yes"}, "invalid options of protocol: tls wants to know who is allowed"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(Settings, "protocol", values)
    assert str(raised.value) == said


def test_a_minimum_is_enforced_without_parsing() -> None:
    assert Settings(guests=1).guests == 1
    with pytest.raises(ValueError, match="guests must be at least 1, not 0"):
        Settings(guests=0)


def test_a_class_without_options_refuses_any_option() -> None:
    @attrs.frozen
    class Bare: ...

    with pytest.raises(ConfigError, match="unknown option 'x' of protocol; available options: none"):
        build(Bare, "protocol", {"x": 1})


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (334_100, "326.3 KiB"),
        (64 << 20, "64.0 MiB"),
        (5 << 60, "5,120.0 PiB"),
    ],
)
def test_sizes_are_shown_in_powers_of_1024(size: int, shown: str) -> None:
    assert shown_size(size) == shown


class Colour(Enum):
    """An option with a choice of values."""

    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        ((), ""),
        (("a", 1), "a,1"),
        (None, ""),
        ("", ""),
        ("text", "text"),
        (0, "0"),
        (10_000, "10000"),
        (30.0, "30s"),
        (0.25, "250ms"),
        (3.2, "3.2s"),
        (172_800.0, "2d"),
        (Colour.RED, "red"),
    ],
)
def test_value_is_shown_as_it_is_typed(value: object, text: str) -> None:
    assert shown_value(attrs.fields(Settings).guests, value) == text


def test_size_is_shown_with_the_largest_unit_that_divides_it() -> None:
    shown = [shown_value(attrs.fields(Settings).max_payload, number) for number in (0, 1000, 4096, 16 << 20, 3 << 40)]
    assert shown == ["0", "1000", "4KiB", "16MiB", "3TiB"]


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("segment",), "0 segments"),
        (1, ("segment",), "1 segment"),
        (4_898, ("record",), "4,898 records"),
        (1, ("batch", "batches"), "1 batch"),
        (2, ("batch", "batches"), "2 batches"),
    ],
)
def test_counted_noun_agrees_with_its_number(number: int, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("keep_age", "; did you mean keep-age?"),
        ("keepage", "; did you mean keep-age?"),
        ("KEEP-AEG", "; did you mean keep-age?"),
        ("max_conections", "; did you mean max-connections?"),
        ("colour", ""),
        ("", ""),
    ],
)
def test_unknown_word_is_answered_with_the_nearest_right_one(word: str, advice: str) -> None:
    assert suggestion(word, ["keep-bytes", "keep-age", "max-connections"]) == advice


def test_choice_accepts_its_words_and_names_them_in_the_error() -> None:
    convert = one_of("none", "optional", "required")
    assert convert("optional") == "optional"
    for text, advice in (("", ""), ("perhaps", ""), ("Optional", "; did you mean optional?")):
        with pytest.raises(ValueError) as raised:
            convert(text)
        assert str(raised.value) == f"none, optional or required{advice}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.000002", 1_000_002),
        ("1970-01-01T02:00:01+02:00", 1_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("-10s", 90_000_000),
        ("-250ms", 99_750_000),
        ("-1m", 40_000_000),
    ],
)
def test_time_is_converted_to_microseconds(text: str, found: int) -> None:
    assert moment(text, 100.0) == found


@pytest.mark.parametrize("text", ["", "-", "-1", "--1h", "yesterday", "1h", "-1y", "2026-13-01", "12:00"])
def test_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as 2026-11-28T12:00 or -1h"):
        moment(text, 100.0)
