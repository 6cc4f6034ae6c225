"""Publishes that were sent with a key: the same publish again gets the same answer, and stores nothing.

    publish(runs, key) -> one batch: the runs, and a record with the key in the stream ``.published`` -> first number

Keys are remembered over restarts and crashes, because key and messages are written together.  Each stream has keys of
its own.  A publish with a known key and other messages is refused.

The table of keys has a part of the memory budget of its own, so neither subscriptions nor keys can take the room of the
other.  When it is full, the server forgets a key that is older than ``server.keys-kept`` or, if there is none, the
oldest key of the largest holder
(:mod:`~fyrehose.broker.fairness`).  A key whose messages are not durable yet is never forgotten; if there are too many
of these, the publish fails with :class:`~fyrehose.errors.NoRoomForKey`, and may be tried again later.  While nothing
can be written, a repetition of such a key is refused like any other publish, instead of waiting for the first.

A record has ``v``, ``stream``, ``key``, ``first``, ``digest`` and ``holder``; all records without ``holder``, which
older versions wrote, count for one holder.  A start reads the last ``4 * capacity`` records.  A flood of keys may write
more records than that after the record of a key that is to be kept.  So a key whose record is followed by ``capacity``
others is written again, one such key with each publish.  At most ``capacity`` keys can be due for that at once, and
while they are written again ``2 * capacity`` records are added: so ``capacity`` of the records that a start reads are
always to spare.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import attrs
from twisted.logger import Logger

from fyrehose.broker.fairness import FairShare
from fyrehose.broker.publisher import Publisher
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.state_stream import StateStream
from fyrehose.errors import KeyReused, NoRoomForKey
from fyrehose.interfaces import IJournal
from fyrehose.net.inflight import InFlight
from fyrehose.net.turns import Turns
from fyrehose.observe.counters import Counters
from fyrehose.records import Publish, Record, Run
from fyrehose.standing import ServerRole

log = Logger()

#: The stream of the keys, and the source of its records.
STREAM, SOURCE = ".published", "server-published"
VERSION = 1
#: The number of keys that are remembered; fewer if their charge exceeds a sixteenth of the memory budget.  A start
#: reads four times as many records, about 80,000 per second.
MOST_KEYS = 100_000
#: The charge of one key to the memory budget, in bytes.
ENTRY = 1_024
#: The shortest time for which a key is kept, unless its holder has the largest share of a full table, in seconds.
KEPT = 600.0
#: How many times ``capacity`` records a start reads.
READ_BACK = 4
#: The shortest time between two log lines about displaced keys of one holder, in seconds.
LOG_EVERY = 60.0


@attrs.define(eq=False)
class Known:
    """A publish that was sent with a key, which is remembered.

    :ivar name: the stream and the key of the publish
    :ivar first: the number of the first message
    :ivar digest: the digest of the messages
    :ivar holder: the peer for which the key counts; empty: the server, or unknown
    :ivar record: the number of the key's latest record in the stream of the keys
    :ivar since: when the key was published or recovered, in microseconds of :attr:`.IJournal.clock`
    :ivar waiting: the repetitions that wait until the publish is durable; None: it is durable
    """

    name: tuple[str, str]
    first: int
    digest: str
    holder: str
    record: int
    since: int
    waiting: list[Publish] | None = None

    def packed(self) -> bytes:
        """Return the payload of the record that stores this key in the stream ``.published``."""
        stream, key = self.name
        fields = {"v": VERSION, "stream": stream, "key": key, "first": self.first, "digest": self.digest}
        return json.dumps(fields | ({"holder": self.holder} if self.holder else {})).encode()


@attrs.frozen(slots=True)
class _Keyed:
    """The note of a publish with a key, which :meth:`PublishedOnce.settle` reads.

    :ivar behind: an older key that was written again with this publish because its record was too far back; now record
        *number*
    :ivar note: the note that *publisher* gave
    """

    known: Known
    behind: Known | None
    number: int
    publisher: Publisher
    note: Any


def unpack(record: Record, now: int) -> Known | None:
    """Return the key of *record*, or None if a later version has written it.

    :raises ValueError: the record is invalid
    """
    try:
        fields = json.loads(record.payload)
        if fields["v"] != VERSION:
            return None
        stream, key, first, digest = (fields[name] for name in ("stream", "key", "first", "digest"))
        holder = fields.get("holder", "")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not (isinstance(first, int) and all(isinstance(text, str) for text in (stream, key, digest, holder))):
        raise ValueError(f"a field has the wrong type: {record.payload[:200]!r}")
    return Known((stream, key), first, digest, holder, record.seq, now)


@attrs.define(eq=False)
class PublishedOnce:
    """The publishes that were sent with a key, by stream and key.

    :ivar kept: the shortest time for which a key is kept, unless its holder has the largest share of a full table, in
        seconds
    :ivar most: the largest number of durable keys, if the budget has room for them
    :ivar turns: gives the replay of a follower its turns
    :ivar capacity: the largest number of durable keys that the budget has room for; as many more may be on their way to
        disk, half of them for one holder
    """

    journal: IJournal
    sequencer: Sequencer
    budget: InFlight
    counters: Counters
    kept: float = KEPT
    most: int = MOST_KEYS
    turns: Turns = attrs.field(kw_only=True)
    capacity: int = attrs.field(init=False)
    #: the remembered publishes by stream and key, in the order of their latest records
    _known: OrderedDict[tuple[str, str], Known] = attrs.field(factory=OrderedDict, init=False)
    _durable: FairShare[Known] = attrs.field(init=False)
    _in_flight: FairShare[Known] = attrs.field(init=False)
    #: the stream of the keys
    stream: StateStream = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.capacity = max(1, min(self.most, self.budget.limit // 16 // ENTRY))
        self._durable, self._in_flight = FairShare(self.capacity), FairShare(self.capacity)
        read, bounds = self.journal.read, self.journal.bounds
        self.stream = StateStream(STREAM, SOURCE, self, read, bounds, content_type="application/json", turns=self.turns)

    def open(self) -> None:
        """Recover the last keys from the journal, which is open, or the keys that were appended since the last call.

        :raises JournalCorrupt: their records cannot be read
        """
        self.stream.open()

    def clear(self) -> None:
        """Forget all keys, because a replay begins."""
        for known in list(self._known.values()):
            self._forget(known)

    def begin(self, newest: Record) -> int:
        """Return the number at which a replay has to begin, which needs the last ``4 * capacity`` records."""
        return max(self.journal.bounds(STREAM)[0], newest.seq - READ_BACK * self.capacity + 1)

    def apply(self, record: Record) -> None:
        """Remember the key of *record*; skip a record that is invalid, because no other depends on it."""
        try:
            known = unpack(record, self.journal.clock.monotonic())
        except ValueError:
            log.warn("record {seq} of stream {stream} is invalid: its key is forgotten", seq=record.seq, stream=STREAM)
            return
        if known is not None:
            self._recover(known)

    def publish(self, publisher: Publisher, runs: list[Run], key: str, note: Any, holder: str) -> None:
        """Publish *runs* by *publisher*, unless they were published with *key* before.

        :param runs: the messages, all of one stream
        :param note: the note of the publish, which *publisher* gets back when it settles the publish
        :param holder: the peer that the key counts for
        :raises KeyReused: *key* belongs to other messages
        :raises NoRoomForKey: too many publishes with keys are not durable yet
        :raises PublishError: as *publisher* does
        """
        stream = runs[0].stream
        name, digest = (stream, key), _digest(runs)
        known = self._known.get(name)
        if known is not None and known.digest != digest:
            raise KeyReused(f"key {key[:80]!r} belongs to other messages, which were published before")
        standing = self.journal.standing
        # A follower may have read a key of messages that the leader has not acknowledged yet, and does not show either.
        if known is None or known.waiting is not None or standing.role is ServerRole.FOLLOWER:
            standing.check_writable()
        if known is not None:
            again = publisher.repeat(runs, known.first, note)
            if known.waiting is None:
                publisher.settle((again,))
            else:
                known.waiting.append(again)
            return
        if not self._in_flight.fits() or 2 * len(self._in_flight.of(holder)) >= self.capacity:
            raise NoRoomForKey(
                f"no room for another key yet: {len(self._in_flight)} publishes with keys are not on disk; send it "
                "again with the same key in a few seconds, or raise server.memory"
            )
        number = self.sequencer.last(STREAM) + 1
        known = Known(name, self.sequencer.last(stream) + 1, digest, holder, number, self.journal.clock.monotonic(), [])
        behind = self._find_behind(number)
        own = self.stream.draft(*(each.packed() for each in (known, behind) if each is not None))
        self._known[name] = known
        self._in_flight.add(known, holder)
        self.budget.charge(ENTRY)  # now, because the publish may be settled before the call returns
        try:
            publisher.publish(runs, _Keyed(known, behind, number + 1, publisher, note), [own], owner=self)
        except Exception:
            self._forget(known)
            raise
        if behind is not None and behind.name in self._known:
            self._known.move_to_end(behind.name)

    def settle(self, items: Sequence[Publish]) -> None:
        """Remember the keys of *items*, and pass the publishes on to their publishers."""
        for item in items:
            keyed: _Keyed = item.note
            assert item.runs[0].first_seq == keyed.known.first, "nothing else was published in between"
            waiting = self._stored(keyed.known, keyed.behind, keyed.number)
            item.owner, item.note = keyed.publisher, keyed.note
            for each in (item, *waiting):
                each.owner.settle((each,))

    def _find_behind(self, number: int) -> Known | None:
        """Return a key whose record is too far back for a restart, to be written again as record *number*.

        A key that was kept long enough is forgotten instead.
        """
        oldest = next(iter(self._known.values()), None)
        if oldest is None or oldest.waiting is not None or number - oldest.record <= self.capacity:
            return None
        if self._is_old(oldest):
            self._forget(oldest)
            return None
        return oldest

    def _stored(self, known: Known, behind: Known | None, number: int) -> list[Publish]:
        """Remember the key *known*, whose publish is durable; return the repeated publishes that waited for it."""
        if behind is not None:
            behind.record = number
        if known in self._in_flight:
            self._in_flight.discard(known)
            displaced = self._make_room(known.holder)
            if displaced is not None:
                self._count_displaced(displaced, known.holder)
            self._durable.add(known, known.holder)
        waiting, known.waiting = known.waiting or [], None
        return waiting

    def _recover(self, known: Known) -> None:
        """Remember the key *known*, whose record was read at a start; the key may have been written twice."""
        before = self._known.get(known.name)
        if before is not None and before.waiting is None and before.first == known.first:
            before.record = known.record
            self._known.move_to_end(known.name)
            return
        if before is not None:
            self._forget(before)
        self._make_room(known.holder)
        self._known[known.name] = known
        self._durable.add(known, known.holder)
        self.budget.charge(ENTRY)

    def _make_room(self, holder: str) -> Known | None:
        """Forget a key if the table is full, to make room for a key of *holder*.

        :return: the forgotten key if it was not kept for ``kept`` seconds; otherwise None
        """
        if self._durable.fits():
            return None
        out = next(iter(self._known.values()))
        if out.waiting is not None or not self._is_old(out):
            oldest = self._durable.first_out(holder)
            assert oldest is not None, "the table is full"
            out = oldest
        self._forget(out)
        return None if self._is_old(out) else out

    def _count_displaced(self, out: Known, holder: str) -> None:
        """Count and log that key *out* was forgotten early, to make room for a key of *holder*."""
        detail = (
            f"a key of {out.holder or 'the server'}, which has the most of all {self.capacity}, was kept for "
            f"{(self.journal.clock.monotonic() - out.since) // 1_000_000} s only; send fewer keys"
        )
        if self.capacity < self.most:
            detail += ", or raise server.memory to keep more"
        self.counters.refuse(log, "server", "key-displaced", holder, detail, apart=out.holder, every=LOG_EVERY)

    def _is_old(self, known: Known) -> bool:
        return bool(self.journal.clock.monotonic() - known.since >= self.kept * 1_000_000)

    def _forget(self, known: Known) -> None:
        if self._known.get(known.name) is known:
            del self._known[known.name]
            self._durable.discard(known)
            self._in_flight.discard(known)
            self.budget.charge(-ENTRY)


def _digest(runs: Sequence[Run]) -> str:
    """Return a digest of the messages and content types; publishes with the same digest are the same."""
    found = blake2b(digest_size=16)
    for run in runs:
        for part in (run.content_type or "").encode(), bytes(run.lengths), bytes(run.payload):
            found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
