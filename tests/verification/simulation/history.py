"""Check that the journal, the server's promises to clients, and the records that clients received agree.

This is the oracle of every simulation:

what clients sent   -> sent: nothing else is ever stored, and nothing more often than it was sent
what became durable -> truth: number -> payload; it never changes, numbers follow on, and time never goes back
what clients receive and are told to be stored was durable, with the same number and payload, before it left the server
in `batch` mode, what is durable is synced on the simulated disk at that moment, whether or not a crash follows
numbers of records that may be lost are never used again, and the log says that they are missing
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs
from world import Violation

from fyrehose.records import Run


@attrs.define(eq=False)
class Sent:
    """One message that a client has sent.

    :ivar copies: returns how often the message may be stored by now
    :ivar order: its ordinal among the messages of its publisher; None where the protocol promises no order
    """

    publisher: str
    order: int | None
    copies: Callable[[], int]


class History:
    """The messages that were sent, stored, acknowledged and received, by stream.

    :ivar truth: the payload of each number, from 1 on; None for a number whose record was lost or never existed
    :ivar lost: payloads that were durable and were lost since in a way that the settings allow
    :ivar deleted: the last number of each stream that retention has deleted
    :ivar unseen: the numbers of each stream whose records retention deleted before the history could read them
    :ivar disk: the simulated disk; None while the server is down
    :ivar synced: whether nothing may be durable that is not synced
    :ivar may_be_lost: whether a crash or damage since the server last ran may have taken a record
    :ivar right_time: returns whether a record may have been written at this time, in microseconds since 1970 UTC
    :ivar unsynced: (since when, stream, number) of durable records that are not synced yet, in modes that allow this
    :ivar checked: how many records were synced at the moment when they became durable
    :ivar internal: streams that the server itself writes
    :ivar foreign: prefix of the streams of hostile peers, whose records are not checked
    """

    foreign = "hostile"

    def __init__(self) -> None:
        self.sent: dict[str, dict[bytes, Sent]] = {}
        self.truth: dict[str, list[bytes | None]] = {}
        self.lost: dict[str, set[bytes | None]] = {}
        self.deleted: dict[str, int] = {}
        self.unseen: dict[str, set[int]] = {}
        self.disk: Any = None
        self.synced = True
        self.may_be_lost: Callable[[str, int], bool] = lambda stream, seq: False
        self.right_time: Callable[[int], bool] = lambda time: True
        self.checked = 0
        self.seconds: Callable[[], float] = lambda: 0.0
        self.unsynced: deque[tuple[float, str, int]] = deque()
        self.stored: dict[str, Counter[bytes]] = {}
        self.times: dict[str, list[int]] = {}
        self.acked: dict[str, set[bytes]] = {}
        self.newest: dict[tuple[str, str], int] = {}
        self.internal: set[str] = set()
        self.journal: Any = None  #: None while the server is down
        self.problems: list[str] = []
        #: for streams whose messages are sent again with other bytes: what names the message of a payload
        self.names: dict[str, Callable[[bytes], bytes]] = {}

    def wrong(self, what: str) -> NoReturn:
        """Record a violation and raise it; it is recorded because the caller may catch every exception."""
        self.problems.append(what)
        raise Violation(what)

    def attach(self, name: str, journal: Any, disk: Any) -> None:
        """Record that the server *name* has opened *journal* on *disk*."""
        self.journal, self.disk = journal, disk

    def detach(self, name: str) -> None:
        """Record that the server *name* has stopped."""
        self.journal = None

    def send(self, stream: str, payload: bytes, sent: Sent) -> None:
        self.sent.setdefault(stream, {})[payload] = sent

    def keeps(self, stream: str) -> bool:
        """Return whether all records of *stream* that the history has seen are still in the journal."""
        kept = stream not in self.unseen and not self.deleted.get(stream)
        return kept and (self.journal is None or self.journal.bounds(stream)[0] <= 1)

    def _name(self, stream: str, payload: Any) -> Any:
        """Return what names the message of *payload*, which is None for a record that was lost."""
        names = self.names.get(stream)
        return payload if names is None or payload is None else names(payload)

    def look(self) -> None:
        """Record what became durable since the last call."""
        if self.journal is None:
            return
        for stream, end in self.journal.ends().items():
            known = len(self.truth.setdefault(stream, []))
            if known < end:
                self._take(stream, end)
                if self.synced:
                    self._check_synced(stream, known, end)
                else:
                    self.unsynced.append((self.seconds(), stream, end))

    def _take(self, stream: str, end: int) -> None:
        """Record the records of *stream* up to number *end*, its last."""
        truth = self.truth[stream]
        while (known := len(truth)) < end:
            runs = self.journal.read(stream, known + 1, 1 << 20)
            if not runs:
                self._skip(stream, end + 1)
            for run in runs:
                self._store(stream, run)

    def _skip(self, stream: str, seq: int) -> None:
        """Check that the numbers before *seq* that have no record are noted as a gap or were deleted by retention."""
        truth = self.truth[stream]
        first, oldest = len(truth) + 1, self.journal.bounds(stream)[0]
        self.deleted[stream] = max(self.deleted.get(stream, 0), oldest - 1)
        if first < oldest:
            self.unseen.setdefault(stream, set()).update(range(first, min(oldest, seq)))
        first = max(first, oldest)
        if first < seq and not self.disk.is_lost(stream, first, seq - 1):
            self.wrong(f"{stream}: {seq} follows {len(truth)}, and no gap is noted")
        truth += [None] * (seq - 1 - len(truth))

    def _check_synced(self, stream: str, known: int, end: int) -> None:
        certain = self.disk.ends().get(stream, 0)
        if certain < end:
            self.wrong(f"{stream} is said to be durable up to {end}, and is synced up to {certain}")
        self.checked += sum(payload is not None for payload in self.truth[stream][known:end])

    def oldest_unsynced(self) -> float | None:
        """Return since when the oldest durable record waits for a sync; None if all are synced."""
        ends = self.disk.ends()
        while self.unsynced and ends.get(self.unsynced[0][1], 0) >= self.unsynced[0][2]:
            self.unsynced.popleft()
        return self.unsynced[0][0] if self.unsynced else None

    def _store(self, stream: str, run: Run) -> None:
        truth = self.truth[stream]
        if run.first_seq > len(truth) + 1:
            self._skip(stream, run.first_seq)
        if run.first_seq != len(truth) + 1:
            self.wrong(f"{stream}: {run.first_seq} follows {len(truth)}")
        times = self.times.setdefault(stream, [])
        if times and run.time < times[-1]:
            self.wrong(f"{stream} {run.first_seq}: the time goes back")
        if not self.right_time(run.time):
            self.wrong(f"{stream} {run.first_seq} is of the time {run.time}, which cannot be")
        times.append(run.time)
        for payload in map(bytes, run.payloads()):
            if stream not in self.internal and not stream.startswith(self.foreign):
                self._count(stream, payload, len(truth) + 1)
            truth.append(payload)

    def _count(self, stream: str, payload: bytes, seq: int) -> None:
        """Count one more stored copy of a message."""
        payload = self._name(stream, payload)
        sent = self.sent.get(stream, {}).get(payload)
        if sent is None:
            self.wrong(f"{stream} {seq}: nobody sent {payload[:40]!r}")
        stored = self.stored.setdefault(stream, Counter())
        stored[payload] += 1
        if stored[payload] > sent.copies():
            self.wrong(f"{stream}: {payload[:40]!r} is stored {stored[payload]} times, sent {sent.copies()}")
        # A record that retention deleted before it was read here may be stored again, after later records.
        known = payload not in self.lost.get(stream, ()) and stream not in self.unseen
        if sent.order is not None and stored[payload] == 1 and known:
            before = self.newest.get((stream, sent.publisher), -1)
            if sent.order <= before:
                self.wrong(f"{stream}: {payload[:40]!r} comes behind number {before} of {sent.publisher}")
            self.newest[stream, sent.publisher] = sent.order

    def acknowledge(self, stream: str, payload: bytes) -> None:
        """Check that *payload*, whose publisher got an acknowledgement, is durable."""
        self.look()
        payload = self._name(stream, payload)
        known = self.stored.get(stream, Counter())[payload] or payload in self.lost.get(stream, ())
        if not known and stream not in self.unseen:
            self.wrong(f"{stream}: {payload[:40]!r} is acknowledged and not durable")
        self.acked.setdefault(stream, set()).add(payload)

    def release(self, stream: str, seq: int, payload: bytes) -> None:
        """Check that a record that the server sends or a client receives is durable with this number."""
        truth = self.truth.setdefault(stream, [])
        if seq > len(truth):
            self.look()
        if not 1 <= seq <= len(truth):
            self.wrong(f"{stream} {seq} was released and is not durable")
        self._see(stream, seq, payload)
        if (known := truth[seq - 1]) != payload:
            shown = None if known is None else known[:40]
            self.wrong(f"{stream} {seq} is {shown!r}, and was said to be {payload[:40]!r}")

    def _see(self, stream: str, seq: int, payload: bytes) -> None:
        """Note the record of a number that retention had deleted, or its age had hidden, before it was read here.

        It was being sent at that time, or is young enough again because the clock went back.
        """
        truth = self.truth[stream]
        unseen = truth[seq - 1] is None and seq in self.unseen.get(stream, ())
        if unseen and self._name(stream, payload) in self.sent.get(stream, ()):
            truth[seq - 1] = payload

    def note_deleted(self) -> None:
        """Record the last number of each stream that retention has deleted."""
        for stream in self.truth:
            self.deleted[stream] = max(self.deleted.get(stream, 0), self.journal.bounds(stream)[0] - 1)

    def note_deletion(self, ends: Mapping[str, int]) -> None:
        """Record that retention deletes a segment; *ends* has the last number of each of its streams."""
        for stream, last in ends.items():
            self.deleted[stream] = max(self.deleted.get(stream, 0), last)

    def missing(self, stream: str, first: int, last: int) -> bool:
        """Return whether all these numbers have no records or were deleted, so that a reader may lack them."""
        self.look()
        truth = self.truth.get(stream, ())
        if self.journal is not None:
            oldest = self.journal.bounds(stream)[0]
            self.deleted[stream] = max(self.deleted.get(stream, 0), oldest - 1)
        first = max(first, self.deleted.get(stream, 0) + 1)
        return all(seq <= len(truth) and truth[seq - 1] is None for seq in range(first, last + 1))

    def follows(self, stream: str, position: int, first: int) -> bool:
        """Return whether *first* is the number that a reader must get next if it has everything up to *position*."""
        return first == position + 1 or (first > position and self.missing(stream, position + 1, first - 1))

    def is_complete(self, stream: str, position: int) -> bool:
        """Return whether a reader that has everything up to *position* has all records of *stream*."""
        return position >= len(self.truth.get(stream, ())) or self.missing(
            stream, position + 1, len(self.truth.get(stream, ()))
        )

    def recovered(self) -> None:
        """Check the journal after a start.

        Everything durable must be there unchanged, except what may be lost; everything else in the journal must have
        been sent, and every number must have the same record as before.
        """
        self.unsynced.clear()
        for stream, truth in self.truth.items():
            oldest, end = self.journal.bounds(stream)
            if stream not in self.journal.ends():
                oldest = 1  # no record is left that tells the first number, so retention cannot have deleted any
            if end < len(truth):
                self.wrong(f"{stream} ended with {len(truth)} and ends with {end} after the start: numbers come again")
            there = self._reread(stream, oldest)
            gone = [
                seq
                for seq in range(max(oldest, self.deleted.get(stream, 0) + 1), len(truth) + 1)
                if truth[seq - 1] is not None and seq not in there
            ]
            for seq in gone:
                if not self.may_be_lost(stream, seq):
                    self.wrong(f"{stream} {seq} is LOST after the start")
                if not self.disk.is_lost(stream, seq, seq):
                    self.wrong(f"{stream} {seq} is lost, and no gap is noted")
                self.lost.setdefault(stream, set()).add(self._name(stream, truth[seq - 1]))
                truth[seq - 1] = None
            if gone:
                self._forget(stream)
        self.look()

    def _reread(self, stream: str, oldest: int) -> set[int]:
        """Compare records of *stream* from *oldest* on with the truth; return the numbers that the journal has."""
        truth, there, seq = self.truth[stream], set(), max(1, oldest)
        while seq <= len(truth) and (runs := self.journal.read(stream, seq, 1 << 20)):
            for run in runs:
                for number, payload in enumerate(map(bytes, run.payloads()), run.first_seq):
                    if number > len(truth):
                        break
                    self._see(stream, number, payload)
                    if truth[number - 1] != payload:
                        self.wrong(f"{stream} {number} is not what it was before the start")
                    there.add(number)
                seq = run.last_seq + 1
        return there

    def _forget(self, stream: str) -> None:
        """Count the stored copies of *stream* again after some of its records were lost."""
        self.stored[stream] = stored = Counter()
        self.times.pop(stream, None)
        for key in [key for key in self.newest if key[0] == stream]:
            del self.newest[key]
        for payload in [self._name(stream, each) for each in self.truth[stream]]:
            sent = None if payload is None else self.sent.get(stream, {}).get(payload)
            if sent is None:
                continue
            stored[payload] += 1
            if sent.order is not None and stored[payload] == 1:
                self.newest[stream, sent.publisher] = sent.order


@attrs.define(eq=False)
class Reader:
    """Checks that a subscriber gets the records of the journal in rising order and without a gap.

    :ivar position: the number of the last record that it got; None before the first
    """

    history: History
    stream: str
    name: str
    position: int | None = None

    def take(self, first: int, payloads: list[bytes]) -> None:
        position = self.position
        if position is not None and not self.history.follows(self.stream, position, first):
            self.history.wrong(f"{self.name} has {self.stream} up to {self.position}, and then gets {first}")
        for seq, payload in enumerate(payloads, first):
            self.history.release(self.stream, seq, payload)
        self.position = first + len(payloads) - 1
