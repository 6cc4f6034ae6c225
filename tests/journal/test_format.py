"""The format: golden bytes in both directions, and every change of a byte is detected."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal import format as fmt
from fyrehose.journal import packing
from fyrehose.records import Run

U64 = (1 << 64) - 1

GOLDEN_SEGMENT = bytes.fromhex(
    "4659524548 4f5345 0100 000000000000 0002000000000000 40420f0000000000 efbeadde".replace(" ", "")
) + bytes(24)
GOLDEN_RUN = bytes.fromhex(
    # length, records, seq, producer_seq
    "40000000 02000000 0500000000000000 0700000000000000"
    # payload 3, has PRODUCER|CONTIGUOUS, producer 1, topic 0, content type 0, stream 1, source 4
    "03000000 0900 0100 0000 0000 01 04 0000"
    # "s" "figg" "p", padding to 8
    "73 66696767 70 0000"
    # lengths 1, 2; payloads "a" "bc", padding
    "01000000 02000000 616263 0000000000".replace(" ", "")
)


def test_the_header_of_a_segment_has_the_specified_bytes() -> None:
    header = fmt.SegmentHeader(512, 1_000_000, 0xDEADBEEF)
    packed = header.pack()
    assert packed == GOLDEN_SEGMENT + crc32c(GOLDEN_SEGMENT).to_bytes(4, "little")
    assert fmt.SegmentHeader.unpack(packed) == header


def make(*runs: Run, position: int = 64, chain: int = 0) -> tuple[fmt.BatchHeader, bytearray]:
    header, data = packing.batch(
        fmt.Kind.RECORDS, runs, position=position, durable=position, time=1, clock=2, chain=chain
    )
    return header, bytearray(data)


@pytest.mark.parametrize(
    "sizes", [[packing.LARGE], [9, packing.LARGE - 1], [3, packing.LARGE + 5, 7], [packing.LARGE] * 3, [1, 2, 3]]
)
def test_large_payloads_are_not_copied(sizes: list[int]) -> None:
    runs = [Run.of("s", [b"%d" % i * size], source="t").numbered(1 + i, 1) for i, size in enumerate(sizes)]
    header, pieces = packing.pieces(fmt.Kind.RECORDS, runs, position=64, durable=0, time=1, clock=1, chain=7)
    large = [run.payload for run in runs if len(run.payload) >= packing.LARGE]
    assert all(any(piece is payload for piece in pieces) for payload in large)
    assert len(pieces) <= 2 * len(large) + 2
    data = b"".join(pieces)
    assert data[:64] == header.pack()
    header.check(data[64:])
    assert fmt.runs(memoryview(data)[64:], 1) == runs


def test_a_batch_has_the_specified_bytes() -> None:
    run = Run.of("s", [b"a", b"bc"], source="figg", producer="p", producer_seq=7).numbered(5, 1)
    header, data = make(run, chain=9)
    assert data[64:] == GOLDEN_RUN
    assert data[:8] == b"FYB\x01\x00\x00\x00\x00"
    assert int.from_bytes(data[56:60], "little") == crc32c(data[64:], 9)
    assert int.from_bytes(data[60:64], "little") == crc32c(data[:60])
    unpacked = fmt.BatchHeader.unpack(data[:64], 64)
    assert unpacked == header
    unpacked.check(data[64:])
    assert [r for run in fmt.runs(data[64:], 1) for r in run.records()] == list(run.records())


maybe = st.none() | st.text(max_size=40).filter(lambda s: s.isprintable())


@st.composite
def some_runs(draw: st.DrawFn) -> Run:
    payloads = draw(st.lists(st.binary(max_size=50), min_size=1, max_size=8))
    count = len(payloads)
    column = st.binary(min_size=8 * count, max_size=8 * count)
    return Run.of(
        draw(st.text("abcdé", min_size=1, max_size=20)),
        payloads,
        source=draw(st.sampled_from(["figg", "x"])),
        producer=draw(maybe),
        topic=draw(maybe),
        content_type=draw(maybe),
        producer_seq=draw(st.none() | st.integers(0, U64 - 10) | column),
        event_ids=draw(st.none() | st.binary(min_size=16 * count, max_size=16 * count)),
        event_times=draw(st.none() | column),
    ).numbered(draw(st.integers(1, (1 << 48) - 100)), 77)


@given(st.lists(some_runs(), min_size=1, max_size=5))
def test_extents_have_the_record_numbers_of_the_decoded_runs(runs: list[Run]) -> None:
    header, data = make(*runs)
    body = memoryview(data)[fmt.BATCH_HEADER.size :]
    assert fmt.extents(body) == [(run.stream, run.first_seq, run.last_seq) for run in fmt.runs(body, header.time)]


@given(some_runs(), st.integers(0, 30), st.integers(1, 255))
def test_extents_refuse_lengths_that_contradict_each_other(run: Run, at: int, flip: int) -> None:
    body = make(run)[1][fmt.BATCH_HEADER.size :]
    body[at] ^= flip
    try:
        whole = [(found.stream, found.first_seq, found.last_seq) for found in fmt.runs(body, 1)]
    except fmt.Damage as damage:
        if "UTF-8" not in str(damage):  # extents decode no name but that of the stream
            with pytest.raises(fmt.Damage):
                fmt.extents(body)
        return
    assert fmt.extents(body) == whole


@given(st.lists(some_runs(), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_random_runs_survive_a_round_trip_through_a_batch(runs: list[Run]) -> None:
    header, data = make(*runs)
    assert len(data) == 64 + header.length
    assert len(data) % 8 == 0
    header.check(data[64:])
    back = fmt.runs(data[64:], 77)
    assert back == runs
    assert [list(run.records()) for run in back] == [list(run.records()) for run in runs]


def test_every_flipped_bit_of_a_batch_is_detected() -> None:
    run = Run.of("stream", [b"payload %d" % i for i in range(9)], source="test", topic="t").numbered(1, 1)
    _, data = make(run)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(fmt.Damage):
            fmt.BatchHeader.unpack(changed[:64], 64).check(changed[64:])


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 100])
def test_truncated_batch_is_damaged(cut: int) -> None:
    _, data = make(Run.of("s", [b"abcdefgh" * 10], source="t").numbered(1, 1))
    with pytest.raises(fmt.Damage):
        fmt.BatchHeader.unpack(data[: min(cut, 64)], 64).check(data[64:cut])


def test_batch_at_another_position_or_with_another_chain_is_damaged() -> None:
    _, data = make(Run.of("s", [b"x"], source="t").numbered(1, 1))
    with pytest.raises(fmt.Damage, match="belongs at position 64"):
        fmt.BatchHeader.unpack(data[:64], 128)


def test_durable_position_beyond_the_batch_is_damaged() -> None:
    """The durable position in the header of a batch lies before the batch."""
    _, data = packing.batch(fmt.Kind.ENDS, [], position=64, durable=72, time=1, clock=1, chain=0)
    with pytest.raises(fmt.Damage, match="beyond its own"):
        fmt.BatchHeader.unpack(data[:64], 64)


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0xFFFFFFF0), (0, 0), (0, 8), (4, 0xFFFFFFFF), (24, 0xFFFFFFFF), (30, 0xFFFF), (32, 0xFFFF), (36, 255)],
)
def test_runs_with_lengths_that_contradict_each_other_are_damage(at: int, value: int) -> None:
    """Lengths are checked even if the checksum is right, because a writer may have a bug."""
    _, data = make(Run.of("s", [b"abc", b"d"], source="t", topic="x").numbered(1, 1))
    body = bytearray(data[64:])
    width = 4 if at < 28 else 1 if at == 36 else 2
    body[at : at + width] = value.to_bytes(width, "little")
    with pytest.raises(fmt.Damage):
        fmt.runs(body, 1)


def test_newer_version_is_reported() -> None:
    header = bytearray(fmt.SegmentHeader(0, 0, 0).pack())
    header[8] = 2
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    with pytest.raises(fmt.Damage, match="newer Fyrehose"):
        fmt.SegmentHeader.unpack(header)


def changed(header: bytes, at: int, value: bytes) -> bytes:
    """Return the header of a batch with some bytes replaced, and a matching checksum."""
    header = header[:at] + value + header[at + len(value) :]
    return header[:60] + crc32c(header[:60]).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("at", "value", "refusal"),
    [
        (3, b"\x02", ""),
        (3, b"\x03", "newer Fyrehose .format version 3; this one reads up to 2"),
        (4, b"\x05", ""),
        (4, b"\x06", "kind 6"),
        (8, (64 << 20).to_bytes(4, "little"), ""),
        (8, ((64 << 20) + 8).to_bytes(4, "little"), "length 67108872"),
        (8, (4).to_bytes(4, "little"), "length 4;"),
    ],
)
def test_invalid_values_in_the_header_of_a_batch_are_damaged(at: int, value: bytes, refusal: str) -> None:
    """Only versions 1 and 2, kinds 0 to 5, and bodies of up to 64 MiB and a multiple of 8 bytes are valid."""
    header = changed(make(Run.of("s", [b"x"], source="t").numbered(1, 1))[0].pack(), at, value)
    if not refusal:
        assert fmt.BatchHeader.unpack(header, 64).pack()[4:12] == header[4:12]
        return
    with pytest.raises(fmt.Damage, match=refusal):
        fmt.BatchHeader.unpack(header, 64)


def test_entries_have_the_specified_bytes() -> None:
    entries = [fmt.Entry("s", 3, 2, fmt.StreamState.RETIRED), fmt.Entry("", 8, 7), fmt.Entry("12345678", 1, 2)]
    header, data = packing.batch(fmt.Kind.STREAMS, entries, position=64, durable=0, time=1, clock=1, chain=0)
    assert data[3:5] == b"\x02\x05"  # version and kind
    assert data[64:] == bytes.fromhex(
        "0300000000000000 0200000000000000 01 01 000000000000 7300000000000000"
        "0800000000000000 0700000000000000 00 00 000000000000"
        "0100000000000000 0200000000000000 08 00 000000000000 3132333435363738"
    )
    assert fmt.entries(data[64:], header.parts) == entries


@pytest.mark.parametrize(
    ("cut", "at", "value", "damage"),
    [
        (23, 0, b"", "truncated"),
        (24, 0, b"", "truncated"),
        (31, 0, b"", "truncated"),
        (32, 17, b"\x05", "state 5"),
        (32, 24, b"\xff", "not UTF-8"),
        (32, 17, b"\x04", ""),
    ],
)
def test_invalid_entries_are_damaged(cut: int, at: int, value: bytes, damage: str) -> None:
    packed = fmt.Entry("s", 3, 2).pack()
    data = (packed[:at] + value + packed[at + len(value) :])[:cut]
    if not damage:
        assert fmt.entries(data, 1) == [fmt.Entry("s", 3, 2, fmt.StreamState.FORGOTTEN)]
        return
    with pytest.raises(fmt.Damage, match=damage):
        fmt.entries(data, 1)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_only_damage(data: bytes) -> None:
    for parse in (
        lambda: fmt.SegmentHeader.unpack(data),
        lambda: fmt.BatchHeader.unpack(data, 0),
        lambda: fmt.runs(data, 0),
        lambda: fmt.entries(data, 3),
    ):
        try:
            parsed = parse()
        except fmt.Damage:
            continue
        assert parsed is not None


def test_runs_are_grouped_by_stream_in_their_order() -> None:
    a1, b1, a2 = (Run.of(s, [p], source="t") for s, p in (("a", b"1"), ("b", b"2"), ("a", b"3")))
    assert list(packing.grouped([a1, b1, a2]).items()) == [("a", [a1, a2]), ("b", [b1])]


@pytest.mark.parametrize("length", range(1, 18))
def test_entries_with_names_of_every_length_survive_a_round_trip(length: int) -> None:
    entries = [fmt.Entry("x" * length, 1, 2), fmt.Entry("y", 3, 4)]
    header, data = packing.batch(fmt.Kind.ENDS, entries, position=64, durable=0, time=1, clock=1, chain=0)
    body = data[fmt.BATCH_HEADER.size :]
    assert (header.length % 8, header.length) == (0, len(body))
    assert fmt.entries(body, 2) == entries
    assert fmt.Entry.unpack(body, 0)[1] + len(entries[1].pack()) == len(body)


def test_constants_of_the_format_have_the_specified_values() -> None:
    """These constants are in the files of every journal, so they must not change."""
    assert (fmt.SEGMENT_VERSION, fmt.BATCH_VERSION, fmt.MAX_BODY, fmt.UNKNOWN) == (1, 2, 64 * 1024 * 1024, b"\0" * 16)
    assert [(kind.name, kind.value, kind.version) for kind in fmt.Kind] == [
        ("RECORDS", 0, 1),
        ("ENDS", 1, 1),
        ("RESERVED", 2, 1),
        ("GAP", 3, 1),
        ("CLOSED", 4, 1),
        ("STREAMS", 5, 2),
    ]
    states = {"LIVE": 0, "RETIRED": 1, "BACK": 2, "HIGHEST": 3, "FORGOTTEN": 4}
    assert {state.name: state.value for state in fmt.StreamState} == states
    assert {part.name: part.value for part in fmt.Has} == {
        "PRODUCER": 1,
        "TOPIC": 2,
        "CONTENT_TYPE": 4,
        "CONTIGUOUS": 8,
        "PRODUCER_SEQS": 16,
        "EVENT_IDS": 32,
        "EVENT_TIMES": 64,
    }


def test_truncated_header_of_a_later_run_is_damaged() -> None:
    runs = [Run.of("s", [b"x"], source="t").numbered(seq, 1) for seq in (1, 2)]
    body = make(*runs)[1][64:]
    for cut in (1, fmt.RUN_HEADER.size - 1):
        with pytest.raises(fmt.Damage, match="a run is truncated"):
            fmt.runs(body[: len(body) // 2 + cut], 1)
