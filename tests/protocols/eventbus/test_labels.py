"""Labels are restored byte for byte."""

from __future__ import annotations

from struct import pack
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.journal.format import Kind, runs
from fyrehose.journal.packing import batch
from fyrehose.protocols.eventbus.labels import (
    CONTENT_TYPE,
    Labels,
    WireLabels,
    derived_uuid,
    read_labels,
    write_time,
    write_uuid,
)
from fyrehose.records import MAX_NAME, Run

USUAL = b"2024-05-01T10:20:30.123Z"
MICROS = 1_714_558_830_123_000
CANONICAL = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"


def run_of(labels: Labels) -> Run:
    return Run.of(
        "s",
        [b"x"],
        source="eventbus",
        topic="/a/",
        producer=labels.producer,
        content_type=labels.content_type,
        event_ids=labels.event_id,
        event_times=None if labels.event_time is None else pack("<q", labels.event_time),
    ).numbered(1, 5)


def again(producer: bytes, timestamp: bytes, uuid: bytes) -> tuple[bytes, bytes, bytes]:
    written = WireLabels(run_of(read_labels(producer, timestamp, uuid)), "eventbus")
    return written.producer, written.timestamp(0), written.uuid(0)


def test_usual_labels_are_stored_in_columns_without_content_type_parameters() -> None:
    labels = read_labels(b"me", USUAL, CANONICAL)
    assert labels == Labels("me", CONTENT_TYPE, UUID(CANONICAL.decode()).bytes, MICROS)


TIMESTAMPS = [
    (USUAL, MICROS, ""),
    (b"2024-05-01T10:20:30Z", MICROS - 123_000, "; time=0Z"),
    (b"2024-05-01T10:20:30.123456Z", MICROS + 456, "; time=6Z"),
    (b"2024-05-01T10:20:30.123456+00:00", MICROS + 456, "; time=6+00:00"),
    (b"2024-05-01T12:20:30.123+02:00", MICROS, "; time=3+02:00"),
    (b"2024-05-01T05:20:30.123-05:00", MICROS, "; time=3-05:00"),
    (b"2024-05-01T10:20:30.123-00:00", MICROS, "; time=3-00:00"),
    (b"2024-05-01T10:20:30.1", MICROS - 23_000, "; time=1"),
    (b"1969-12-31T23:59:59.999Z", -1_000, ""),
    (b"0001-01-01T00:00:00.000Z", -62_135_596_800_000_000, ""),
    (b"9999-12-31T23:59:59.999Z", 253_402_300_799_999_000, ""),
    (b"2024-05-01 10:20:30.123Z", None, '; timestamp="2024-05-01 10:20:30.123Z"'),
    (b"2024-05-01T10:20:30.1234567Z", None, '; timestamp="2024-05-01T10:20:30.1234567Z"'),
    (b"2024-02-30T10:20:30.123Z", None, '; timestamp="2024-02-30T10:20:30.123Z"'),
    (b"2016-12-31T23:59:60.000Z", None, '; timestamp="2016-12-31T23:59:60.000Z"'),
    (b"0001-01-01T00:00:00.000+14:00", None, '; timestamp="0001-01-01T00:00:00.000+14:00"'),
    (b"2024-05-01T10:20:30.123+25:00", None, '; timestamp="2024-05-01T10:20:30.123+25:00"'),
    (b"1714558830", None, '; timestamp="1714558830"'),
    (b"", None, '; timestamp=""'),
    (b'say "when"', None, "; timestamp-base64=c2F5ICJ3aGVuIg"),
    (b"a;b=c", None, '; timestamp="a;b=c"'),
    (b"\\", None, "; timestamp-base64=XA"),
    (b"\xff\0", None, "; timestamp-base64=_wA"),
    ("\uff12".encode(), None, "; timestamp-base64=77yS"),
]


@pytest.mark.parametrize(("timestamp", "micros", "note"), TIMESTAMPS)
def test_timestamp_round_trip(timestamp: bytes, micros: int | None, note: str) -> None:
    """Threat: bad timestamps, which are kept as they were sent."""
    labels = read_labels(b"me", timestamp, CANONICAL)
    assert (labels.event_time, labels.content_type) == (micros, CONTENT_TYPE + note)
    assert again(b"me", timestamp, CANONICAL) == (b"me", timestamp, CANONICAL)


@pytest.mark.parametrize(
    ("uuid", "known", "note"),
    [
        (CANONICAL, True, ""),
        (CANONICAL.upper(), True, "; uuid-case=upper"),
        (b"00000000-0000-0000-0000-000000000000", True, ""),
        (b"7D444840-9dc0-41d1-b245-5ffdce74fad2", True, '; uuid="7D444840-9dc0-41d1-b245-5ffdce74fad2"'),
        (CANONICAL.replace(b"-", b""), True, '; uuid="7d4448409dc041d1b2455ffdce74fad2"'),
        (CANONICAL[:-1], False, '; uuid="7d444840-9dc0-41d1-b245-5ffdce74fad"'),
        (b"{" + CANONICAL + b"}", False, '; uuid="{7d444840-9dc0-41d1-b245-5ffdce74fad2}"'),
        (b"42", False, '; uuid="42"'),
        (b"upper", False, '; uuid="upper"'),
        (b"", False, '; uuid=""'),
        (b"\xf0", False, "; uuid-base64=8A"),
    ],
)
def test_uuid_round_trip(uuid: bytes, known: bool, note: str) -> None:
    """Threat: bad UUIDs, which are kept as they were sent."""
    labels = read_labels(b"me", USUAL, uuid)
    assert (labels.event_id is not None, labels.content_type) == (known, CONTENT_TYPE + note)
    assert again(b"me", USUAL, uuid) == (b"me", USUAL, uuid)


@pytest.mark.parametrize(
    ("producer", "text"),
    [
        (b"", ""),
        ("Łódź".encode(), "Łódź"),
        (b"100%", "100%"),
        (b"a\0b", "a\0b"),
        (b"\xff%", "%FF%25"),
        (b"\xff" * 64, "%FF" * 64),
    ],
)
def test_producer_round_trip(producer: bytes, text: str) -> None:
    assert read_labels(producer, USUAL, CANONICAL).producer == text
    assert again(producer, USUAL, CANONICAL) == (producer, USUAL, CANONICAL)


label = st.one_of(
    st.binary(max_size=64),
    st.text(max_size=16).map(str.encode),
    st.sampled_from([t for t, _, _ in TIMESTAMPS]),
    st.datetimes().map(lambda moment: moment.isoformat().encode()),
    st.uuids().map(lambda uuid: str(uuid).encode()),
)


@given(label, label, label)
def test_any_labels_survive_the_journal_format(producer: bytes, timestamp: bytes, uuid: bytes) -> None:
    labels = read_labels(producer, timestamp, uuid)
    assert len(labels.producer) <= MAX_NAME
    assert len(labels.content_type) <= MAX_NAME
    stored = stored_run(run_of(labels))
    written = WireLabels(stored, "eventbus")
    assert (written.producer, written.timestamp(0), written.uuid(0)) == (producer, timestamp, uuid)


def test_longest_labels_fit_into_a_content_type() -> None:
    for worst in (b"\xff" * 64, b'"' * 64, b"a" * 64):
        labels = read_labels(worst, worst, worst)
        assert len(labels.content_type) <= MAX_NAME
        assert again(worst, worst, worst) == (worst, worst, worst)


def test_records_of_other_protocols_get_derived_labels() -> None:
    run = Run.of("notes", [b"x", b"y"], source="figg", producer="10.0.0.1").numbered(7, MICROS + 456)
    written = WireLabels(run, "eventbus")
    assert written.foreign
    assert written.producer == b"figg"
    assert written.timestamp(1) == USUAL
    assert written.uuid(0) == derived_uuid("notes", 7)
    assert written.uuid(1) == derived_uuid("notes", 8)


def test_derived_uuid_is_stable_and_of_version_4() -> None:
    assert derived_uuid("notes", 7) == b"a41060fb-24f3-479d-a125-04754077cba5"
    assert UUID(derived_uuid("notes", 7).decode()).version == 4
    assert derived_uuid("notes", 8) != derived_uuid("notes", 7) != derived_uuid("note", 7)


def test_run_without_columns_has_empty_labels() -> None:
    run = Run.of("s", [b"x"], source="eventbus").numbered(1, 5)
    written = WireLabels(run, "eventbus")
    assert (written.producer, written.timestamp(0), written.uuid(0)) == (b"", b"", b"")


def test_timestamp_is_written_in_its_form() -> None:
    assert write_time(MICROS, "3Z") == USUAL
    assert write_time(-1, "6Z") == b"1969-12-31T23:59:59.999999Z"
    assert write_uuid(UUID(CANONICAL.decode()).bytes) == CANONICAL


def stored_run(run: Run) -> Run:
    """Write *run* in the journal's format and read it back."""
    header, data = batch(Kind.RECORDS, [run], position=0, durable=0, time=5, clock=5, chain=0)
    return runs(data[-header.length :], 5)[0]
