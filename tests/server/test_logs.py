"""The log is written as text or JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger, LogLevel, LogPublisher
from twisted.python.failure import Failure

from fyrehose.observe.counters import Counters
from fyrehose.server.logs import MAX_FIELD, LevelObserver, json_line, text_line
from tests.doubles.awkward import NAMES, SURROGATES


def logged(form: str, *calls: Any) -> list[str]:
    """Return the lines that *calls* of a logger write."""
    out = io.StringIO()
    log = Logger(namespace="fyrehose.test", observer=LogPublisher(LevelObserver(form, out)))
    for call in calls:
        call(log)
    return out.getvalue().splitlines()


def test_json_has_one_object_per_line() -> None:
    (line,) = logged("json", lambda log: log.warn("{protocol}: {n} of {peer}", protocol="figg", n=3, peer="10.0.0.1"))
    found = json.loads(line)
    time = found.pop("time")
    assert time.endswith("Z")
    assert len(time) == len("2026-11-21T23:59:01.123456Z")
    assert found == {
        "level": "warn",
        "module": "fyrehose.test",
        "message": "figg: 3 of 10.0.0.1",
        "protocol": "figg",
        "n": 3,
        "peer": "10.0.0.1",
    }


def test_a_refusal_has_its_cause_as_a_field() -> None:
    (line,) = logged("json", lambda log: Counters().refuse(log, "figg", "Forbidden", "10.0.0.1", "it may not"))
    found = json.loads(line)
    assert (found["protocol"], found["cause"], found["peer"]) == ("figg", "Forbidden", "10.0.0.1")


def test_a_failure_is_one_line() -> None:
    def fail(log: Logger) -> None:
        try:
            raise ValueError("wrong\nin two lines")
        except ValueError:
            log.failure("that went wrong")

    (line,) = logged("json", fail)
    found = json.loads(line)
    assert (found["level"], found["message"]) == ("critical", "that went wrong")
    assert found["error"] == "ValueError: wrong\nin two lines"
    assert "Traceback" in found["traceback"]
    assert "log_failure" not in found


NASTY = "a\x1b[2J\n2026-01-01 [x] forged\u202e\u2028\r\x00\ud800"


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("name", [NASTY, *NAMES, *SURROGATES])
def test_names_from_peers_cannot_forge_lines_or_control_a_terminal(form: str, name: str) -> None:
    lines = logged(form, lambda log: log.info("stream {name}", name=name))
    for line in lines:
        assert line.replace("\t", "").isprintable()
    if form == "json":
        assert len(lines) == 1
        assert json.loads(lines[0])["name"] == name
    else:
        assert [line[:1] for line in lines[1:]] == ["\t"] * (len(lines) - 1), "what follows is indented"


def test_text_lines_look_like_those_of_twistd() -> None:
    (line,) = logged("text", lambda log: log.info("hällo"))
    assert line.endswith(" [fyrehose.test#info] hällo")
    assert text_line({"log_time": 0.0}) is None, "there is nothing to say"


def test_fields_of_events_keep_their_types_and_long_values_are_truncated() -> None:
    fields = {
        "yes": True,
        "none": None,
        "big": 1 << 70,
        "real": 1.5,
        "nan": float("nan"),
        "long": "x" * 5000,
        "any": {1},
    }
    found = json.loads(json_line({"log_format": "x", "log_level": LogLevel.info, "log_time": 0.0, **fields}))
    assert found["time"] == "1970-01-01T00:00:00.000000Z"
    assert (found["yes"], found["none"], found["big"], found["real"]) == (True, None, 1 << 70, 1.5)
    assert (found["nan"], found["any"], len(found["long"])) == ("nan", "{1}", MAX_FIELD + 3)


def test_events_of_the_legacy_log_are_written() -> None:
    found = json.loads(json_line({"log_text": "old", "log_format": "{log_text}", "isError": 0, "system": "-"}))
    assert (found["message"], found["level"], found["module"]) == ("old", "info", "-")
    assert "isError" not in found


def test_lines_of_twisted_about_ports_are_left_out() -> None:
    def said(text: str) -> dict[str, Any]:
        return {"log_namespace": "log_legacy", "log_format": "{log_text}", "log_text": text, "log_time": 0.0}

    out = io.StringIO()
    write = LevelObserver("text", out)
    for text in ("SessionFactory starting on 8119", "(TCP Port 8119 Closed)", "something starting on its own, twice"):
        write(said(text))
    write({**said("ours is starting on 8119"), "log_namespace": "fyrehose.x"})
    assert [line.partition("] ")[2] for line in out.getvalue().splitlines()] == [
        "something starting on its own, twice",
        "ours is starting on 8119",
    ]


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()))
def test_every_event_is_logged_as_one_json_object(fields: dict[str, Any]) -> None:
    line = json_line({**fields, "log_format": "said", "log_level": LogLevel.info, "log_time": 1.0})
    assert line.count("\n") == 1
    assert line.isascii()
    assert isinstance(json.loads(line), dict)


def test_a_failure_without_a_type_is_written() -> None:
    found = json.loads(json_line({"log_format": "x", "log_failure": Failure(ValueError("v"))}))
    assert found["error"] == "ValueError: v"


@pytest.mark.parametrize(("level", "written"), [("debug", 3), ("info", 2), ("warn", 1), ("error", 0)])
def test_events_below_the_level_are_not_written(level: str, written: int) -> None:
    out = io.StringIO()
    observe = LevelObserver("text", out, level)
    for each in (LogLevel.debug, LogLevel.info, LogLevel.warn):
        observe({"log_format": "said", "log_level": each, "log_time": 0.0, "log_namespace": "x"})
    assert len(out.getvalue().splitlines()) == written


def test_level_may_change_at_any_time() -> None:
    out = io.StringIO()
    observe = LevelObserver("text", out)
    event = {"log_format": "said", "log_level": LogLevel.info, "log_time": 0.0, "log_namespace": "x"}
    observe.level = LogLevel.error
    observe(event)
    assert out.getvalue() == ""
    observe.level = LogLevel.info
    observe(event)
    assert "said" in out.getvalue()
