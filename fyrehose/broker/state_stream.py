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
3. **A checkpoint is many changes**: each of its records says "this is the state of that member", with all that was
   *appended* before, durable or not.  Slices of such records are written in turns, and others append between them.  A
   replay that begins at the first of these records skips the changes of members that it has not met; it meets each
   member that still exists, in a record of the checkpoint, or because it was created behind the first one.
4. **Every record names the last checkpoint that is complete**, by the number of its first record, so the newest record
   alone says where a replay begins.  The last record of a checkpoint names that checkpoint.  Records before it are
   never read, and retention may delete them.  A replay that begins earlier, or runs through a checkpoint, also through
   one that a crash has cut short, gives the same state.
5. **A checkpoint is due** when the records behind the last one exceed a fixed size, and four times the size of that
   checkpoint: a replay takes a bounded time, and checkpoints add at most a quarter to what is written.  It is also due
   when retention has to delete the segment of the last one.  If it is refused, for example by a full disk, the next
   check finds it due again.
6. **A follower replays all the time**, in turns, and takes over only if it lacks few records: replaying them all at
   once would keep it silent for seconds.  A server that has written to the stream itself forgets how far it has
   replayed: its next replay begins at the checkpoint.  A record that was refused does not count as written.
7. **Only the server writes here.**  Names of such streams begin with a dot, and records of another source are skipped:
   a policy may let an operator's program publish into such a stream, and that must not change the state.

The keys of publishes have no checkpoints: each record stands for itself, old ones are written again one by one, and
:meth:`Replayable.begin` says how many a replay needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from struct import pack
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt, PublishError
from fyrehose.net.turns import SteppedWork, Turns
from fyrehose.records import Record, Run

log = Logger()

T = TypeVar("T")
#: The result of a function that waits for Deferreds by ``yield`` (``inlineCallbacks``), and returns a T.
Steps = Generator[Deferred[Any], Any, T]
#: The journal's ``read``: stream, first number, size in bytes -> runs.
Read = Callable[[str, int, int], tuple[Run, ...]]
#: Size of one read, in bytes: a read is one step of a replay.
READ_SIZE = 256 << 10
#: A slice of a checkpoint ends behind the record with which it has more than this many bytes.
SLICE_BYTES = 16 << 10


class Replayable(Protocol):
    """State in memory that is rebuilt at a start from the records of its stream."""

    def clear(self) -> None:
        """Forget the whole state, because it is about to be rebuilt from the stream."""

    def begin(self, newest: Record) -> int:
        """Return the number of the record at which a replay has to begin; this record may be deleted already.

        :param newest: the last record of the stream
        :return: 0: there is no checkpoint
        :raises ValueError: the record is invalid
        """

    def apply(self, record: Record) -> None:
        """Apply *record* to the state.

        :raises ValueError: the record is invalid, or a newer version has written it
        """


@attrs.define
class Replayed:
    """The result of a replay: how far the stream was replayed, and which records were missing.

    :ivar last: the number up to which the stream was replayed; 0: no record was replayed
    :ivar checkpoint: the number at which a replay begins, see :meth:`Replayable.begin`
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


def replay(state: Replayable, read: Read, bounds: tuple[int, int], stream: str, source: str) -> Replayed:
    """Apply the records of *stream* to *state*, from the last checkpoint on, and count those that are missing.

    :param bounds: the oldest and the last number of the stream
    :raises JournalCorrupt: a record cannot be read, or is invalid
    """
    found = _begin(state, read, bounds, stream, source)
    for _ in _steps(found, state, read, lambda stream: bounds, stream, source):
        pass
    return found


def _begin(state: Replayable, read: Read, bounds: tuple[int, int], stream: str, source: str) -> Replayed:
    """Clear *state*, and find where its replay has to begin.

    :raises JournalCorrupt: as for :func:`replay`
    """
    state.clear()
    newest = last_record(read, stream, bounds, source)
    if newest is None:
        return Replayed(last=bounds[1])
    begin = _judged(state.begin, newest, stream)
    return Replayed(last=max(1, begin) - 1, checkpoint=begin)


def _judged(function: Callable[[Record], T], record: Record, stream: str) -> T:
    """Return what *function* returns for *record*.

    :raises JournalCorrupt: the record is invalid
    """
    try:
        return function(record)
    except ValueError as damage:
        raise JournalCorrupt(f"record {record.seq} of stream {stream} cannot be replayed: {damage}") from damage


def _steps(
    found: Replayed, state: Replayable, read: Read, bounds: Callable[[str], tuple[int, int]], stream: str, source: str
) -> Iterator[None]:
    """Continue the replay *found* to the end of the stream; yield before each record that is applied.

    :raises JournalCorrupt: as for :func:`replay`
    """
    while True:
        oldest, last = bounds(stream)
        start = max(found.last + 1, oldest)
        runs, newest = read(stream, start, READ_SIZE) if start <= last else (), None
        for run in runs:
            for record in run.records():
                if record.source == source:
                    yield
                    _judged(state.apply, newest := record, stream)
                found.missing += record.seq - found.last - 1
                found.last = record.seq
        if newest is not None:
            found.checkpoint = max(found.checkpoint, _judged(state.begin, newest, stream))
        if not runs:
            found.missing += max(0, last - found.last)
            found.last = max(found.last, last)
            return


def _slices(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield *payloads* in lists of more than :data:`SLICE_BYTES` bytes, except for the last one."""
    found, size = list[bytes](), 0
    for payload in payloads:
        found.append(payload)
        size += len(payload)
        if size > SLICE_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


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
    :ivar everything: yields the payloads of a checkpoint, each with what was appended until then; None: the stream has
        none
    :ivar end: returns a payload that changes nothing, and names the checkpoint that begins at a number
    :ivar turns: gives the slices of a checkpoint, and the steps of a replay, their turns
    :ivar checkpoint_bytes: a checkpoint is due when the records behind the last one exceed this number of bytes, and
        four times its size
    """

    name: str
    source: str
    state: Replayable
    read: Read
    bounds: Callable[[str], tuple[int, int]]
    publish: Callable[[Sequence[Run]], Deferred[Any]] | None = None
    everything: Callable[[], Iterable[bytes]] | None = attrs.field(default=None, kw_only=True)
    end: Callable[[int], bytes] = attrs.field(default=lambda begin: b"", kw_only=True)
    checkpoint_bytes: int = attrs.field(default=256 << 10, kw_only=True)
    content_type: str | None = attrs.field(default=None, kw_only=True)
    turns: Turns = attrs.field(kw_only=True)
    #: number of the first record of the last checkpoint that is complete and durable; 0: none
    checkpoint: int = attrs.field(default=0, init=False)
    #: number of its last record, or of its first one, if another server or an earlier one has written it
    checkpoint_end: int = attrs.field(default=0, init=False)
    _found: Replayed = attrs.field(factory=Replayed, init=False)
    _stale: bool = attrs.field(default=True, init=False)  #: whether the next replay has to begin at the checkpoint
    _drafts: Run | None = attrs.field(default=None, init=False)  #: the last draft; it gets numbers if it is accepted
    _following: SteppedWork | None = attrs.field(default=None, init=False)  #: the replay that waits for its next turn
    _checkpoint_size: int = attrs.field(default=0, init=False)
    _bytes_since: int = attrs.field(default=0, init=False)
    _checkpointing: bool = attrs.field(default=False, init=False)

    # Reading.

    def open(self) -> Replayed:
        """Bring the state up to date: replay from the checkpoint on, or only the records since the last call.

        :raises JournalCorrupt: a record cannot be read, or is invalid
        """
        for _ in self.steps():
            pass
        return self._found

    def steps(self, afresh: bool = False) -> Generator[None, None, Replayed]:
        """Bring the state up to date in steps, as :meth:`open` does at once.

        :param afresh: replay from the checkpoint on in any case, because the state was emptied
        :raises JournalCorrupt: as for :meth:`open`
        """
        following, self._following = self._following, None
        if following is not None:
            following.stop()  # this server may change the state from now on
        self._stale = self._stale or afresh
        yield from self._replay()
        return self._found

    def _replay(self) -> Iterator[None]:
        """Replay the records to the end of the stream, in steps.

        :raises JournalCorrupt: as for :meth:`open`
        """
        self._note_written()
        again = self._stale or not self._found.last
        try:
            if again:
                self._found, self._stale = (
                    _begin(self.state, self.read, self.bounds(self.name), self.name, self.source),
                    False,
                )
            yield from _steps(self._found, self.state, self.read, self.bounds, self.name, self.source)
        except Exception:
            self._stale = True
            raise
        # What a follower has missed is in the next checkpoint, at which another replay begins.
        self._stale = not again and self._found.missing > 0 and self._found.checkpoint > self.checkpoint
        self.checkpoint = self.checkpoint_end = self._found.checkpoint
        if self._stale:
            yield from self._replay()

    @property
    def lag(self) -> int:
        """Return how many records of the stream are not replayed, at most."""
        return self.bounds(self.name)[1] - (0 if self._stale else self._found.last)

    def follow(self) -> None:
        """Replay what another server has appended; after a damaged record, only :meth:`open` tries again."""
        if not self._found.damage and self._following is None:
            self._following = SteppedWork(self.turns, self._replay())
            self._following.begin().addBoth(self._followed)

    def _followed(self, result: Any) -> None:
        """Note that the replay has ended; after a defect, the next record begins it again at the checkpoint."""
        self._following = None
        if not isinstance(result, Failure):
            return
        if result.check(JournalCorrupt):
            self._found = Replayed(damage=str(result.value))
            log.warn("this server cannot take over before this is mended: {damage}", damage=self._found.damage)
        else:
            log.failure("the stream {stream} is not replayed", result, stream=self.name)

    # Writing.

    def draft(self, *payloads: bytes) -> Run:
        """Return records with *payloads*, to be published in one batch with the messages that they belong to."""
        self._note_written()
        self._bytes_since += sum(map(len, payloads))
        self._drafts = made = Run(
            stream=self.name,
            source=self.source,
            lengths=pack(f"<{len(payloads)}I", *map(len, payloads)),
            payload=b"".join(payloads),
            content_type=self.content_type,
        )
        return made

    def _note_written(self) -> None:
        """Begin the next replay at the checkpoint if the last draft was accepted."""
        if self._drafts is not None and self._drafts.first_seq:
            self._stale, self._drafts = True, None

    def append(self, *payloads: bytes) -> Deferred[Any]:
        """Append records by themselves, without messages of peers; the Deferred fires when they are durable."""
        assert self.publish is not None, "the stream publishes nothing by itself"
        return self.publish([self.draft(*payloads)])

    def is_due(self) -> bool:
        """Return whether a checkpoint is due, because enough was written since the last one (rule 5)."""
        return self._bytes_since > max(self.checkpoint_bytes, 4 * self._checkpoint_size)

    def maintain(self, must_move: bool = False) -> None:
        """Write a checkpoint if one is due.

        :param must_move: whether retention has deleted the last checkpoint, or waits for a new one to delete it
        """
        if (must_move or self.is_due()) and not self._checkpointing:
            self.write_checkpoint().addErrback(self._not_written)

    @inlineCallbacks
    def write_checkpoint(self) -> Steps[None]:
        """Write a checkpoint; the Deferred fires when it is durable, and fails if the journal refuses it."""
        assert self.everything is not None, "the stream has no checkpoints"
        behind, size, begin = self._bytes_since, 0, 0
        self._bytes_since = 0
        self._checkpointing = True
        try:
            for payloads in _slices(chain([self.end(self.checkpoint)], self.everything())):
                firsts = yield self.append(*payloads)
                begin, part = begin or firsts[0], sum(map(len, payloads))
                size += part
                if part > SLICE_BYTES:
                    yield SteppedWork(self.turns, iter(())).later()
            (end,) = yield self.append(self.end(begin))
        except PublishError:
            self._bytes_since += behind
            raise
        finally:
            self._checkpointing = False
        self.checkpoint, self.checkpoint_end, self._checkpoint_size = begin, end, size
        self._bytes_since -= size

    def _not_written(self, failure: Failure) -> None:
        failure.trap(PublishError)
        log.warn(
            "the checkpoint of stream {stream} was not written, and is tried again: {why}",
            stream=self.name,
            why=failure.getErrorMessage(),
        )
