"""Test the parts that destinations share."""

from __future__ import annotations

import json

import pytest

from fyrehose.forward.destination import BatchOutcome, documents, identity, merged, place, template
from fyrehose.records import Run

#: Ports of the schemes that have one: those of the receiver's listener, IANA's for HTTP, and rsyslog's for RELP.
PORTS = (("http", 80), ("lumberjack", 5044), ("relp", 2514))


def run_of(*payloads: bytes, first: int = 1) -> Run:
    return Run.of("s", payloads, source="figg", first_seq=first, time=1_000_000)


def test_document_is_the_payload_if_that_is_an_object() -> None:
    items, refused = documents([run_of(b'{"a": 1}', b" {}", b"[1]", b"{", b"\xfe", b"")])
    assert [document for _, _, document in items[:2]] == [b'{"a": 1}', b" {}"]
    wrapped = [json.loads(document) for _, _, document in items[2:]]
    assert wrapped == [{"@timestamp": "1970-01-01T00:00:01+00:00", "message": text} for text in ("[1]", "{", "")]
    assert [run.first_seq for run, _ in refused] == [5]


def test_identity_differs_between_journals_streams_and_numbers() -> None:
    run = run_of(b"a", b"b")
    found = {identity(run, 0, "e1"), identity(run, 1, "e1"), identity(run, 0, "e2")}
    assert found == {"e1:s:1", "e1:s:2", "e2:s:1"}


def test_outcomes_of_parts_are_one() -> None:
    one, two, three = run_of(b"a"), run_of(b"b", first=2), run_of(b"c", first=3)
    parts = [BatchOutcome(), BatchOutcome([one], "busy", pause=3.0), BatchOutcome(refused=[(two, "no")])]
    assert merged(parts) == BatchOutcome([one], "busy", [(two, "no")], 3.0)
    for pause in (0.0, 3.0, 30.0):
        later = [*parts, BatchOutcome([three], "later", pause=pause, more=True)]
        assert merged(later) == BatchOutcome([one, three], "busy", [(two, "no")], max(3.0, pause), more=True)


@pytest.mark.parametrize("url", ["h:1", "http://", "kafka://h", "http://h:x", "http://h#x", "http://[::1", ""])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URLs of one scheme"):
        place(url)


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("elasticsearch+https://[::1]:9200/a?b=c", ("elasticsearch", True, "[::1]:9200", "/a?b=c")),
        *((f"{name}://h", (name, False, f"h:{port}", "")) for name, port in PORTS),
        *((f"{name}s://h", (name, True, f"h:{443 if name == 'http' else port}", "")) for name, port in PORTS),
        ("opensearch+http://h", ("opensearch", False, "h:80", "")),
        ("opensearch+https://h", ("opensearch", True, "h:443", "")),
    ],
)
def test_place_has_its_scheme_without_the_suffix_of_tls_and_its_port(url: str, made: tuple[object, ...]) -> None:
    found = place(url)
    assert (found.scheme, found.encrypted, found.authority, found.path) == made


def test_words_of_a_template_are_those_of_the_record() -> None:
    words = ("stream", "seq", "time", "time_ns", "date", "payload", "text", "record")
    made = template(*words)("{stream} {seq} {time} {time_ns} {date} {payload} {text}")
    assert made.filled(run_of(b'"x"', first=9), 0) == 's 9 1000000 1000000000 1970.01.01 "x" "\\"x\\""'
    whole = json.loads(template("record")("{record}").filled(run_of(b"x", first=9), 0))
    assert (whole["stream"], whole["seq"], whole["payload"]) == ("s", 9, "x")
