"""Test the binary form of live answers: runs are decoded as they were encoded, and contradictions are noticed."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.ndjson import TextChecks
from fyrehose.protocols.http.runs import head_of, run_form, run_of
from fyrehose.records import Run
from fyrehose.sessions import PIECE
from fyrehose.web.session import RUNS

from .test_consuming import World

LABELS = st.none() | st.text(max_size=5)


@st.composite
def runs(draw: Any, most: int = 40) -> Run:
    payloads = draw(st.lists(st.binary(max_size=most), min_size=1, max_size=20))
    count = len(payloads)
    columns = {"event_ids": 16, "event_times": 8}
    found = {name: draw(st.none() | st.just(bytes(width * count))) for name, width in columns.items()}
    return Run.of(
        draw(st.text(min_size=1, max_size=5)),
        payloads,
        source=draw(st.text(max_size=5)),
        producer=draw(LABELS),
        topic=draw(LABELS),
        content_type=draw(LABELS),
        producer_seq=draw(st.none() | st.integers(0, 2**63) | st.just(b"\7" * 8 * count)),
        **found,
    ).numbered(draw(st.integers(1, 2**47)), draw(st.integers(0, 2**50)))


def decoded(data: bytes) -> list[Run]:
    found = []
    while data:
        head, _, rest = data.partition(b"\n\n")
        fields = json.loads(head.removeprefix(b"event: run\ndata: "))
        found.append(run_of(fields, rest[: fields["size"]]))
        data = rest[fields["size"] :]
    return found


def records(found: list[Run]) -> list[Any]:
    return [record for run in found for record in run.records()]


@given(st.lists(runs(), min_size=1, max_size=4))
def test_runs_are_decoded_as_they_were_encoded(found: list[Run]) -> None:
    encoded = run_form("e").encode(tuple(found))
    assert records(decoded(encoded.data)) == records(found)
    assert (encoded.records, encoded.last) == (sum(map(len, found)), found[-1].last_seq)


@pytest.mark.parametrize("size", [0, 1, 700, PIECE // 2 + 1, PIECE])
def test_piece_has_as_many_records_as_fit(size: int) -> None:
    run = Run.of("s", [bytes(size)] * 100_000 if size < 2 else [bytes(size)] * 300, source="http").numbered(1, 1)
    encoded = run_form("").encode((run, run))
    (part,) = decoded(encoded.data)
    assert encoded.records == len(part) == part.last_seq == encoded.last
    assert len(encoded.data) < PIECE + 1_000
    assert len(encoded.data) + size + 5 > min(PIECE, len(run.payload)) or size == PIECE // 2 + 1


@pytest.mark.parametrize("size", [PIECE + 1, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 1, 512_000])
def test_record_larger_than_a_piece_is_cut(size: int) -> None:
    payload = (bytes(range(256)) * 2_000)[:size]
    run = Run.of("s", [payload, b"next"], source="http", producer_seq=9).numbered(5, 1)
    form = run_form("")
    assert form.encode((run,)).records == 0
    large, position, pieces = form.large(run, TextChecks()), 0, []
    assert large.run is not None
    while position is not None:
        piece, position = large.cut(large.run, position)  # type: ignore[assignment]
        pieces.append(piece)
    assert max(map(len, pieces)) <= PIECE
    assert records(decoded(b"".join(pieces))) == records([run.slice(0, 1)])


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"count": 3}, None),
        ({"count": 0}, b""),
        ({"columns": ["event_ids"]}, None),
        ({}, b"\1\0\0\0\1\0\0\0abc"),
        ({}, b"\1\0\0\0\1\0\0"),
    ],
)
def test_columns_that_contradict_their_head_are_refused(changed: dict[str, Any], body: bytes | None) -> None:
    run = Run.of("s", [b"a", b"b"], source="http").numbered(1, 1)
    head = json.loads(head_of(run).removeprefix(b"event: run\ndata: "))
    with pytest.raises(ValueError, match="contradict"):
        run_of(head | changed, bytes(run.lengths) + bytes(run.payload) if body is None else body)


@pytest.mark.parametrize("target", ["/streams/s/live?from=3", "/streams/*/live?match=s*&subscription=n&from=3"])
def test_server_sends_runs_to_a_client_that_accepts_them(target: str) -> None:
    world = World()
    peer = world.peer()
    peer.say(f"GET {target}", None, f"Accept: {RUNS}, text/event-stream")
    world.clock.advance(0)
    head, _, body = peer.hear().partition(b"\r\n\r\n")
    assert f"Content-Type: {RUNS}\r\n".encode() in head
    assert b"X-Accel-Buffering: no" in head
    chunks, text = body, b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        text, chunks = text + chunks[: int(size, 16)], chunks[int(size, 16) + 2 :]
    begin, _, rest = text.partition(b"\n\n")
    assert begin.startswith(b"event: begin\n")
    (run,) = decoded(rest)
    (kept,) = world.broker.read("s", 3, 10_000)
    assert attrs.asdict(run, recurse=False) == attrs.asdict(kept, recurse=False)
