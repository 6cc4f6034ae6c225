"""Check the runs that a program publishes, before they get numbers.

The journal writes the columns of a run as they are, and all publishes of a commit by one call.  A run that cannot be
encoded, or whose columns contradict each other, would fail that call, or be damage on disk.  Sessions make their runs
from checked bytes; a program that embeds the server may make any.

    Broker.publish -> check_publish -> numbers, memory, the journal
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fyrehose.errors import InvalidName, InvalidRun
from fyrehose.kernels import columns
from fyrehose.records import MAX_NAME, Buffer, Run

#: A limit of bytes that no column reaches.
_ALL = (1 << 64) - 1
#: The first number that an unsigned column of 64 bits cannot hold.
_END = 1 << 64


def check_publish(runs: Sequence[Run], own: Sequence[Run], key: str | None) -> None:
    """Check that the journal can store all *runs* and *own*; see :meth:`fyrehose.interfaces.IBroker.publish`.

    :raises InvalidRun: there is no record, a column does not fit the others, or a record is numbered already
    :raises InvalidName: a stream, a source or a label is no text, is too long, or cannot be encoded as UTF-8
    """
    if not runs and (key is not None or not own):
        raise InvalidRun("a publish has no runs; publish at least one record")
    for run in (*runs, *own):
        check_draft(run)
    if key is None:
        return
    if not isinstance(key, str):
        raise InvalidRun(f"the key of a publish is {_kind(key)}; expected str")
    streams = {run.stream for run in runs}
    if len(streams) > 1:
        raise InvalidRun(f"a publish with a key is to {len(streams)} streams; publish to each with a key of its own")


def check_draft(run: Run) -> None:
    """Check that *run* can be stored, and has neither numbers nor a time yet; see :func:`check_publish`."""
    if not isinstance(run, Run):
        raise InvalidRun(f"{_kind(run)} was published; expected a fyrehose.Run")
    check_names(run)
    where = f"a run for stream {run.stream[:80]!r}"
    if run.first_seq != 0 or run.time != 0:
        raise InvalidRun(
            f"{where} has number {run.first_seq!r} and time {run.time!r} already; publish a copy without: "
            "attrs.evolve(run, first_seq=0, time=0)"
        )
    size = _size(run.lengths, "lengths", where)
    count = size // 4
    if not count or size % 4:
        raise InvalidRun(f"{where} has lengths of {size} bytes; expected 4 bytes for each of 1 or more records")
    total = columns.span(run.lengths, 0, count, _ALL)[1]
    if _size(run.payload, "payload", where) != total:
        raise InvalidRun(f"{where} has lengths of {total} bytes in all, and a payload of {len(run.payload)} bytes")
    for name, column, width in (("event_ids", run.event_ids, 16), ("event_times", run.event_times, 8)):
        if column is not None and _size(column, name, where) != width * count:
            raise InvalidRun(
                f"{where} has {name} of {len(column)} bytes; expected {width} bytes for each of {count} records"
            )
    _check_producer_seq(run.producer_seq, count, where)
    rebuilt = attrs.evolve(run)
    if (rebuilt.size, rebuilt.room) != (run.size, run.room):
        raise InvalidRun(f"{where} was changed after it was built; build another one with attrs.evolve")


def check_names(run: Run) -> None:
    """Check the name of the stream, the source and the labels of *run*.

    :raises InvalidName: one of them is no text, is too long, or cannot be encoded as UTF-8
    """
    if not 1 <= _encoded_size(run.stream, "stream name") <= MAX_NAME:
        raise InvalidName(f"invalid stream name {run.stream[:80]!r}: expected 1 to {MAX_NAME} bytes of UTF-8")
    if _encoded_size(run.source, "source") > MAX_NAME:
        raise InvalidName(f"invalid source {run.source[:80]!r}: expected at most {MAX_NAME} bytes of UTF-8")
    for label in (run.producer, run.topic, run.content_type):
        if label is not None:
            _encoded_size(label, "label")
            if len(label) > MAX_NAME:
                raise InvalidName(f"label {label[:80]!r} has {len(label)} characters; the limit is {MAX_NAME}")


def _check_producer_seq(producer_seq: int | Buffer | None, count: int, where: str) -> None:
    """Check the producer's own numbers: the first of consecutive ones, or a column of 64 bits for each record."""
    if producer_seq is None:
        return
    if isinstance(producer_seq, int):
        if not 0 <= producer_seq <= _END - count:
            raise InvalidRun(f"{where} has producer_seq {producer_seq}; expected numbers from 0 to 2^64 - 1")
    elif _size(producer_seq, "producer_seq", where) != 8 * count:
        raise InvalidRun(
            f"{where} has producer_seq of {len(producer_seq)} bytes; expected 8 bytes for each of {count} records"
        )


def _size(column: Buffer, name: str, where: str) -> int:
    """Return the size of *column* in bytes; raise InvalidRun if it is no contiguous buffer of bytes."""
    try:
        view = memoryview(column)
    except TypeError:
        raise InvalidRun(f"{where} has {_kind(column)} as {name}; expected bytes") from None
    if not view.c_contiguous or view.nbytes != len(column):
        raise InvalidRun(f"{where} has a view of {view.format!r} as {name}; expected contiguous bytes")
    return view.nbytes


def _encoded_size(text: str, name: str) -> int:
    """Return the size of *text* in UTF-8; raise InvalidName if *text* is no text, or has lone surrogates."""
    if not isinstance(text, str):
        raise InvalidName(f"invalid {name}: expected str, not {_kind(text)}")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"invalid {name} {text[:80]!r}: it has lone surrogates, which UTF-8 cannot encode") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
