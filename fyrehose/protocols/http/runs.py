"""The binary form of live answers: events as in the text form, but runs in place of records.

    event: run
    data: {"stream": "s", "first": 7, "time": ..., "source": "http", "count": 2, "size": 20}
    (an empty line)
    size bytes: lengths, then the columns that the object names, then the payloads end to end

The object has the labels that all records share.  ``producer_seq`` is the first of consecutive numbers; ``columns``
names the columns of 8 or 16 bytes a record that follow the lengths.  All numbers in columns are little-endian.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs

from fyrehose.jsontext import dumped
from fyrehose.ndjson import TextChecks
from fyrehose.net.outgoing import LargeRecord
from fyrehose.protocols.http.answers import Form
from fyrehose.records import Buffer, Run
from fyrehose.sessions import PIECE, Encoded
from fyrehose.web.session import RUNS

#: The optional columns and the bytes of each for a record, in their order.
COLUMNS = {"producer_seq": 8, "event_ids": 16, "event_times": 8}


def columns_of(run: Run) -> dict[str, Buffer]:
    """Return the optional columns that *run* has, by name and in their order."""
    found = {"producer_seq": run.producer_seq, "event_ids": run.event_ids, "event_times": run.event_times}
    return {name: column for name, column in found.items() if column is not None and not isinstance(column, int)}


def head_of(run: Run) -> bytes:
    """Return the event that announces *run*; its columns follow."""
    columns = columns_of(run)
    labels = {
        "time": run.time or None,
        "source": run.source or None,
        "producer": run.producer,
        "topic": run.topic,
        "content_type": run.content_type,
        "producer_seq": run.producer_seq if isinstance(run.producer_seq, int) else None,
        "columns": list(columns) or None,
    }
    head = {"stream": run.stream, "first": run.first_seq, "count": len(run), "size": run.size}
    head |= {name: value for name, value in labels.items() if value is not None}
    return b"event: run\ndata: %b\n\n" % dumped(head)


def run_of(head: dict[str, Any], body: bytes) -> Run:
    """Return the run that the object *head* announces.

    :raises ValueError: the body does not have what the head says
    :raises KeyError: the head lacks a member
    """
    count, view, at = int(head["count"]), memoryview(body), 0
    found: dict[str, Any] = {name: head.get(name) for name in ("producer", "topic", "content_type", "producer_seq")}
    for name in ("lengths", *head.get("columns", ())):
        end = at + count * COLUMNS.get(name, 4)
        found[name], at = view[at:end], end
    run = Run(
        stream=str(head["stream"]),
        source=head.get("source", ""),
        time=head.get("time", 0),
        first_seq=int(head["first"]),
        payload=view[at:],
        **found,
    )
    if not count or len(run) != count or sum(run.sizes) != len(run.payload):
        raise ValueError("the columns of a run contradict its head")
    return run


@attrs.frozen
class RunForm(Form):
    """The binary form of records in a live answer."""

    media_type: str = attrs.field(default=RUNS, kw_only=True)

    def encode(self, runs: tuple[Run, ...]) -> Encoded:
        """Encode the first records of *runs*, as many as fit into a piece; none if the first one does not fit."""
        found: list[Buffer] = []
        room, count, last = PIECE, 0, runs[0].first_seq - 1
        for run in runs:
            if run.sizes[0] > room:
                break
            part = run.slice(0, run.fitting(room))
            if part.size > room:  # the columns of small payloads are larger than these
                part = part.slice(0, max(1, len(part) * room // part.size))
            found += (head_of(part), part.lengths, *columns_of(part).values(), part.payload)
            room -= part.size
            count, last = count + len(part), part.last_seq
            if len(part) < len(run):
                break
        return Encoded(b"".join(found), last, count)

    def large(self, run: Run, checks: TextChecks) -> LargeRecord:
        """Return the first record of *run*, which is larger than a piece, to be sent in pieces."""

        def cut(run: Run, position: int) -> tuple[bytes, int | None]:
            """Return the bytes of the next piece, and where the piece after it begins; None after the last."""
            if not position:
                return b"".join((head_of(run), run.lengths, *columns_of(run).values())), 1
            end = position + PIECE
            data = bytes(memoryview(run.payload)[position - 1 : end - 1])
            return data, end if end <= len(run.payload) else None

        return LargeRecord(run.stream, run.first_seq, cut, run.slice(0, 1))


@cache
def run_form(epoch: str) -> RunForm:
    """Return the binary form of the events of one stream, always the same object for an epoch."""
    return RunForm(b"", b"", epoch=epoch)
