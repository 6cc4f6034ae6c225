"""Streams of state: the server keeps state that must survive a restart in a stream, and replays the stream at a start.

    change -> a record, in one batch with what it belongs to -> durable -> the change has happened
    start: the newest record -> the checkpoint that it names -> all records from there on -> the state

The theory, which holds for named subscriptions, shared subscriptions, the keys of publishes and Relink's links alike:

1. **A state is a fold.**  Each record of the stream is a change, and :meth:`Replayable.apply` of all records in their
   order gives the state.  So a server that starts, a server that follows another one, and a program that reads the
   files come to the same state.
2. **One batch.**  The record of a change is appended together with the messages that the change is about.  After a
   crash both are there, or neither.  :meth:`StateStream.draft` makes such a record;
   :meth:`StateStream.append` publishes one by itself.
3. **A checkpoint is a change, too**: "forget everything; this is the state".  It contains all that was *appended*
   before it, durable or not, because that is what the records before it add up to.
4. **Every record names the last durable checkpoint**, so the newest record alone says where a replay begins.  Records
   before the checkpoint are never read, and retention may delete them.  A replay that begins earlier, or runs through a
   checkpoint, gives the same state.
5. **A checkpoint is due** when the records behind the last one exceed a fixed size, and four times the size of that
   checkpoint: a replay takes a bounded time, and checkpoints add at most a quarter to what is written.  It is also due
   when retention has to delete the segment of the last one.  If it is refused, for example by a full disk, the next
   check finds it due again.
6. **A follower replays all the time**, so that it has only the latest records to replay when it takes over.  A server
   that has written to the stream itself forgets how far it has replayed: its next replay begins at the checkpoint.
7. **Only the server writes here.**  Names of such streams begin with a dot, and records of another source are skipped:
   a policy may let an operator's program publish into such a stream, and that must not change the state.

The keys of publishes have no checkpoints: each record stands for itself, old ones are written again one by one, and
:meth:`Replayable.begin` says how many a replay needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from struct import pack
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt, PublishError
from fyrehose.records import Record, Run

log = Logger()

T = TypeVar("T")
#: The result of a function that waits for Deferreds by ``yield`` (``inlineCallbacks``), and returns a T.
Steps = Generator[Deferred[Any], Any, T]
#: The journal's ``read``: stream, first number, size in bytes -> runs.
Read = Callable[[str, int, int], tuple[Run, ...]]
#: Size of one read, in bytes.
READ_SIZE = 4 << 20


class Replayable(Protocol):
    """State in memory that is rebuilt at a start from the records of its stream."""

    def clear(self) -> None:
        """Forget the whole state, because it is about to be rebuilt from the stream."""

    def begin(self, newest: Record) -> int:
        """Return the number of the record at which a replay has to begin; this record may be deleted already.

        :param newest: the last record of the stream
        :raises ValueError: the record is invalid
        """

    def apply(self, record: Record) -> bool:
        """Apply *record* to the state, and return whether the record begins a checkpoint.

        :raises ValueError: the record is invalid, or a newer version has written it
        """


@attrs.define
class Replayed:
    """The result of a replay: how far the stream was replayed, and which records were missing.

    :ivar last: the number up to which the stream was replayed; 0: no record was replayed
    :ivar checkpoint: number of the first record of the last checkpoint; 0: there is none
    :ivar missing: how many records after the checkpoint are missing, so that changes may be lost
    :ivar damage: why the replay has stopped; empty: it has not stopped early
    """

    last: int = 0
    checkpoint: int = 0
    missing: int = 0
    damage: str = ""


def records(read: Read, stream: str, start: int, last: int) -> Iterator[Record]:
    """Yield the records of *stream* from number *start* to at least *last*."""
    while start <= last:
        runs = read(stream, start, READ_SIZE)
        if not runs:
            return
        for run in runs:
            yield from run.records()
        start = runs[-1].last_seq + 1


def last_record(read: Read, stream: str, bounds: tuple[int, int], source: str) -> Record | None:
    """Return the last record of *source*, searching backwards past records of others; None if there is none.

    :param bounds: the oldest and the last number of the stream
    """
    oldest, last = bounds
    step, end = 1, last
    while end >= oldest:
        start = max(oldest, end - step + 1)
        own = [r for r in records(read, stream, start, end) if r.seq <= end and r.source == source]
        if own:
            return own[-1]
        end, step = start - 1, step * 2
    return None


def replay(
    state: Replayable,
    read: Read,
    bounds: tuple[int, int],
    stream: str,
    source: str,
    found: Replayed | None = None,
) -> Replayed:
    """Apply the records of *stream* to *state*, from the last checkpoint on, and count those that are missing.

    :param bounds: the oldest and the last number of the stream
    :param found: the result of an earlier replay, which this one continues; None: begin at the checkpoint
    :raises JournalCorrupt: a record cannot be read, or is invalid
    """
    oldest, last = bounds
    if found is None:
        state.clear()
        found = Replayed(last=last)
        newest = last_record(read, stream, bounds, source)
        if newest is None:
            return found
        try:
            expected = max(1, state.begin(newest))
        except ValueError as damage:
            raise JournalCorrupt(f"record {newest.seq} of stream {stream} cannot be replayed: {damage}") from damage
    else:
        expected = found.last + 1
    for record in records(read, stream, max(expected, oldest), last):
        found.missing += record.seq - expected
        expected = record.seq + 1
        if record.source != source:
            continue
        try:
            if state.apply(record):
                found.checkpoint, found.missing = record.seq, 0
        except ValueError as damage:
            raise JournalCorrupt(f"record {record.seq} of stream {stream} cannot be replayed: {damage}") from damage
    found.missing += max(0, last + 1 - expected)
    found.last = max(last, expected - 1)
    return found


@attrs.define(eq=False)
class StateStream:
    """A stream of state, with the methods that replay it, append to it, and write its checkpoints.

    :ivar name: name of the stream, which begins with a dot
    :ivar source: the source of the server's own records
    :ivar state: the state to which the records are applied
    :ivar read: the journal's ``read``
    :ivar bounds: the journal's ``bounds``
    :ivar publish: publishes the server's own records; None: they are only published together with messages of peers,
        see
        :meth:`draft`
    :ivar everything: returns the payloads of a checkpoint: all that was appended; None: the stream has none
    :ivar checkpoint_bytes: a checkpoint is due when the records behind the last one exceed this number of bytes, and
        four times its size
    """

    name: str
    source: str
    state: Replayable
    read: Read
    bounds: Callable[[str], tuple[int, int]]
    publish: Callable[[Sequence[Run]], Deferred[Any]] | None = None
    everything: Callable[[], Sequence[bytes]] | None = attrs.field(default=None, kw_only=True)
    checkpoint_bytes: int = attrs.field(default=256 << 10, kw_only=True)
    content_type: str | None = attrs.field(default=None, kw_only=True)
    #: number of the first record of the last durable checkpoint; 0: none
    checkpoint: int = attrs.field(default=0, init=False)
    _found: Replayed = attrs.field(factory=Replayed, init=False)
    _stale: bool = attrs.field(default=True, init=False)  #: whether the next replay has to begin at the checkpoint
    _checkpoint_size: int = attrs.field(default=0, init=False)
    _bytes_since: int = attrs.field(default=0, init=False)
    _checkpointing: bool = attrs.field(default=False, init=False)

    # Reading.

    def open(self) -> Replayed:
        """Bring the state up to date: replay from the checkpoint on, or only the records since the last call.

        :raises JournalCorrupt: a record cannot be read, or is invalid
        """
        before = None if self._stale or not self._found.last else self._found
        self._stale = True  # If this replay fails, the next one begins at the checkpoint.
        self._found = replay(self.state, self.read, self.bounds(self.name), self.name, self.source, before)
        self._stale, self.checkpoint = False, self._found.checkpoint
        return self._found

    def follow(self) -> None:
        """Replay what another server has appended; after a damaged record, only :meth:`open` tries again."""
        if self._found.damage:
            return
        try:
            self.open()
        except JournalCorrupt as damage:
            self._found = Replayed(damage=str(damage))
            log.warn("this server cannot take over before this is mended: {damage}", damage=str(damage))

    # Writing.

    def draft(self, *payloads: bytes) -> Run:
        """Return records with *payloads*, to be published in one batch with the messages that they belong to."""
        self._stale = True
        self._bytes_since += sum(map(len, payloads))
        return Run(
            stream=self.name,
            source=self.source,
            lengths=pack(f"<{len(payloads)}I", *map(len, payloads)),
            payload=b"".join(payloads),
            content_type=self.content_type,
        )

    def append(self, payload: bytes) -> Deferred[Any]:
        """Append one record by itself, without messages of peers; the Deferred fires when the record is durable."""
        assert self.publish is not None, "the stream publishes nothing by itself"
        return self.publish([self.draft(payload)])

    def is_due(self) -> bool:
        """Return whether a checkpoint is due, because enough was written since the last one (rule 5)."""
        return self._bytes_since > max(self.checkpoint_bytes, 4 * self._checkpoint_size)

    def maintain(self, must_move: bool = False) -> None:
        """Write a checkpoint if one is due.

        :param must_move: whether retention has deleted the last checkpoint, or waits for a new one to delete it
        """
        if (must_move or self.is_due()) and not self._checkpointing:
            self.write_checkpoint().addErrback(self._not_written)

    def write_checkpoint(self) -> Deferred[None]:
        """Write a checkpoint; the Deferred fires when it is durable, and fails if the journal refuses it."""
        assert self.everything is not None, "the stream has no checkpoints"
        assert self.publish is not None, "the stream publishes nothing by itself"
        payloads = self.everything()
        self._checkpointing = True
        behind, checkpoint = self._bytes_since, self.draft(*payloads)
        self._bytes_since = 0

        def durable(firsts: tuple[int, ...]) -> None:
            self._checkpointing = False
            self.checkpoint, self._checkpoint_size = firsts[0], sum(map(len, payloads))

        def refused(failure: Failure) -> Failure:
            self._checkpointing = False
            self._bytes_since += behind
            return failure

        return self.publish([checkpoint]).addCallbacks(durable, refused)

    def _not_written(self, failure: Failure) -> None:
        failure.trap(PublishError)
        log.warn(
            "the checkpoint of stream {stream} was not written, and is tried again: {why}",
            stream=self.name,
            why=failure.getErrorMessage(),
        )
