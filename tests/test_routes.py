"""Routes: the stream of an event by its content, its topic and its writer's certificate."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build
from fyrehose.protocols.lumberjack.server import LumberjackSettings
from fyrehose.records import MAX_NAME
from fyrehose.routes import MOST_FIELDS, Routes, routes


def chosen(text: str, *strings: str | None, topic: str | None = None, certificate: str | None = None) -> str | None:
    return Routes(routes(text)).stream(strings, topic, certificate)


def test_first_route_whose_words_all_have_values_decides() -> None:
    text = "logs.{fields.service}.{level}, by-host.{host.name}, beats.{topic}"
    assert Routes(routes(text)).paths == ((b"fields", b"service"), (b"level",), (b"host", b"name"))
    assert chosen(text, "web", "error", "h") == "logs.web.error"
    assert chosen(text, "web", None, "h", topic="filebeat") == "by-host.h"
    assert chosen(text, None, "error", None, topic="filebeat") == "beats.filebeat"
    assert chosen(text, None, None, None) is None


def test_route_can_name_the_stream_by_the_certificate() -> None:
    assert chosen("from.{certificate}", certificate="web-1") == "from.web-1"
    assert chosen("from.{certificate}") is None


@pytest.mark.parametrize("value", [".hidden", "", "x" * (MAX_NAME + 1), "ü" * MAX_NAME])
def test_route_that_yields_an_invalid_stream_name_is_skipped(value: str) -> None:
    assert chosen("{a}", value) is None


def test_route_may_yield_a_name_of_the_maximum_length() -> None:
    assert chosen("{a}", "x" * MAX_NAME) == "x" * MAX_NAME


@pytest.mark.parametrize("text", ["plain", "a.{}", "a.{b..c}", "a.{b", "a}b{c}", "{a}, plain", ".a.{b}", "{a.{b}}"])
def test_invalid_route_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"lumberjack.routes: expected .*logs\.\{fields\.service\}"):
        build(LumberjackSettings, "lumberjack", {"routes": text})


def test_number_of_fields_is_limited() -> None:
    text = ".".join(f"{{f{n}}}" for n in range(MOST_FIELDS))
    assert len(Routes(routes(f"x{text}, {{f0}}.{{topic}}")).fields) == MOST_FIELDS
    with pytest.raises(ValueError, match="at most 7 different fields"):
        routes(f"x{text}.{{one-more}}")
