"""The durable state of shared subscriptions, and its records in the stream ``.shared``.

    {"v": 1, "since": 17, "name": "billing", "set": {"stream": "orders", "lease": 30, ...},
     "floors": {"orders": 0}, "epoch": 16, "redriven": 0}                                            created
    {"v": 1, "since": 17, "name": "billing", "set": null}                                            deleted
    {"v": 1, "since": 17, "name": "billing", "stream": "orders", "epoch": 7, "reach": 5200,
     "final": [[4100, 4180], 4190], "dead": [4185], "letters": [[4185, 5, "limit", TIME]],
     "expired": [], "ends": {"4181": [2, 1]}}                                                        a change
    {"v": 1, "since": 17, "name": "billing", "redriven": 300}                  see SavedShare.redriven
    {"v": 1, "all": [INDEX, COUNT], "shared": {"billing": {...}}}                                    a checkpoint

``ends`` has, by the number of a record, how many of its leases have ended, and how many of them failed.  ``rewind`` in
a change forgets everything about the stream, and continues behind that number.  ``letters`` has for each dead letter
its failures, why it became one (``limit``, or the reason that a worker gave with its rejection), and when.
:mod:`~fyrehose.broker.state_stream` explains how such a stream is replayed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from fyrehose.records import LAST_SEQ, Record

#: The stream of shared subscriptions, and the source of its records.
STREAM, SOURCE = ".shared", "server-shared"
VERSION = 1
#: A checkpoint begins another record when its last record is larger than this, in bytes.
RECORD_SIZE = 64 << 10
#: The ways in which a record becomes final.
FINAL = ("settled", "dead", "expired")
#: How many of the latest dead letters of one stream are kept with their details; older ones are only counted.
KEPT_LETTERS = 20

#: One encoder for all calls, because json.dumps() makes a new one for each call with other options than the defaults.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

#: The number of a record, its failures, why it became a dead letter, and when, in microseconds since 1970 UTC.
DeadLetter = tuple[int, int, str, int]
#: Ranges of records: the first and the last number of each.
Ranges = list[tuple[int, int]]


class FinalNumbers:
    """The numbers of the final records of a stream: all up to a floor, and ranges above the floor."""

    def __init__(self, floor: int = 0, above: Iterable[tuple[int, int]] = ()) -> None:
        self.floor = floor
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in above:
            self.add(first, last)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return seq <= self.floor or (at >= 0 and seq <= self._lasts[at])

    def above(self) -> list[tuple[int, int]]:
        """Return the ranges of final numbers above the floor, in ascending order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def all(self) -> Ranges:
        """Return all ranges of final numbers, beginning with the range up to the floor."""
        return ([(1, self.floor)] if self.floor else []) + self.above()

    def reaches(self, seq: int) -> bool:
        """Return whether *seq* or a later number is final."""
        return seq <= self.floor or bool(self._lasts and seq <= self._lasts[-1])

    def add(self, first: int, last: int) -> int:
        """Add the numbers from *first* to *last*, and return how many of them are new."""
        first = max(first, self.floor + 1)
        if first > last:
            return 0
        begin = bisect_right(self._firsts, first)
        if begin and self._lasts[begin - 1] >= first - 1:
            begin -= 1
        end, known, low, high = begin, 0, first, last
        while end < len(self._firsts) and self._firsts[end] <= last + 1:
            known += max(0, min(last, self._lasts[end]) - max(first, self._firsts[end]) + 1)
            low, high = min(low, self._firsts[end]), max(high, self._lasts[end])
            end += 1
        self._firsts[begin:end], self._lasts[begin:end] = [low], [high]
        if low == self.floor + 1:
            self.floor = high
            del self._firsts[0], self._lasts[0]
        return last - first + 1 - known

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from *first* to *last* that are not final."""
        at = max(first, self.floor + 1)
        for begin, end in [*self.above(), (last + 1, last + 1)]:
            if at <= min(begin - 1, last):
                yield at, min(begin - 1, last)
            at = max(at, end + 1)


@attrs.frozen(kw_only=True)
class ShareOptions:
    """The options that a shared subscription was created with; they never change.

    :ivar stream: the stream that is shared, or, with *pattern*, the pattern of the streams
    :ivar lease: how long a worker has a record, in seconds
    :ivar limit: the failure that makes a record a dead letter; 0: none does
    :ivar window: how many records up to the highest leased one may be not final at a time
    :ivar most: how many records one consumer may hold
    :ivar dead: the stream of the dead letters; None: they are only counted
    :ivar key: records of the same key are handled in order: ``topic``, ``producer``, a member of JSON objects, or None
    :ivar creator: the network of the peer that created it
    """

    stream: str
    pattern: bool = False
    lease: int = 30
    limit: int = 5
    window: int = 1_000
    most: int = 100
    dead: str | None = None
    key: str | None = None
    creator: str = ""


@attrs.define
class StreamProgress:
    """The progress of a subscription in one stream.

    :ivar reach: no record with a higher number was ever leased
    :ivar ends: for each record that is not final: how many of its leases have ended, and how many of them failed
    :ivar counts: how many records became final in each of the ways of :data:`FINAL`
    :ivar letters: the details of the last dead letters
    """

    final: FinalNumbers = attrs.field(factory=FinalNumbers)
    reach: int = 0
    ends: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    counts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(FINAL, 0))
    letters: list[DeadLetter] = attrs.field(factory=list)

    def apply(self, change: Mapping[str, Any]) -> None:
        """Update the progress by *change*, the fields of a record in the stream ``.shared``."""
        if "rewind" in change:
            self.final, self.reach, self.ends = FinalNumbers(change["rewind"]), change["rewind"], {}
        for kind, name in (("final", "settled"), ("dead", "dead"), ("expired", "expired")):
            for first, last in _pairs(change.get(kind, ())):
                self.end(name, first, last)
                self._forget_ends(first, last)
        self.reach = max(self.reach, change.get("reach", 0))
        if "letters" in change:
            self.letters = [*self.letters, *map(_letter, change["letters"])][-KEPT_LETTERS:]
        for seq, (deliveries, failures) in change.get("ends", {}).items():
            if int(seq) not in self.final:
                self.ends[int(seq)] = deliveries, failures

    def _forget_ends(self, first: int, last: int) -> None:
        known = self.ends
        for seq in range(first, last + 1) if last - first < len(known) else [s for s in known if first <= s <= last]:
            known.pop(seq, None)

    def end(self, how: str, first: int, last: int) -> None:
        """Make the records from *first* to *last* final, and count those that were not.

        :param how: one of :data:`FINAL`
        """
        self.counts[how] += self.final.add(first, last)

    def packed(self) -> dict[str, Any]:
        """Return the progress as an object for JSON, in the form that a checkpoint stores."""
        return {
            "floor": self.final.floor,
            "above": self.final.above(),
            "reach": self.reach,
            "ends": {str(seq): end for seq, end in self.ends.items()},
            "counts": list(self.counts.values()),
            "letters": self.letters,
        }

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> StreamProgress:
        """Return the progress that the *fields* of :meth:`packed` describe."""
        final = FinalNumbers(fields["floor"], [(first, last) for first, last in fields["above"]])
        ends = {int(seq): (deliveries, failures) for seq, (deliveries, failures) in fields["ends"].items()}
        counts = dict(zip(FINAL, fields["counts"], strict=True))
        return cls(final, fields["reach"], ends, counts, list(map(_letter, fields["letters"])))


@attrs.define
class SavedShare:
    """The durable state of one shared subscription.

    :ivar epoch: a number that is raised by each server that leases records, and by each rewind; it begins above the
        epochs of earlier subscriptions of this name
    :ivar streams: its progress by stream; a stream that is not here begins with its first record
    :ivar redriven: the dead letters up to this number, in their stream, were published again, or are of an earlier
        subscription of the name
    """

    options: ShareOptions
    epoch: int = 0
    paused: bool = False
    streams: dict[str, StreamProgress] = attrs.field(factory=dict)
    redriven: int = 0

    def progress(self, stream: str) -> StreamProgress:
        return self.streams.setdefault(stream, StreamProgress())

    def packed(self) -> dict[str, Any]:
        """Return the fields that a checkpoint stores, for JSON; :meth:`unpacked` reads them."""
        streams = {name: progress.packed() for name, progress in self.streams.items()}
        return {
            "options": attrs.asdict(self.options),
            "epoch": self.epoch,
            "paused": self.paused,
            "streams": streams,
            "redriven": self.redriven,
        }

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> SavedShare:
        streams = {name: StreamProgress.unpacked(progress) for name, progress in fields["streams"].items()}
        options = ShareOptions(**fields["options"])
        return cls(options, fields["epoch"], fields["paused"], streams, fields["redriven"])


@attrs.define
class SavedShares:
    """All shared subscriptions, by name (a state of :mod:`~fyrehose.broker.state_stream`)."""

    shares: dict[str, SavedShare] = attrs.field(factory=dict)

    def clear(self) -> None:
        self.shares = {}

    def begin(self, newest: Record) -> int:
        """Return the number at which the last checkpoint begins.

        If *newest* is a record of a checkpoint, its ``all`` says how many records of that checkpoint come before.
        """
        fields = _parsed(newest.payload)
        try:
            begin = newest.seq - fields["all"][0] if "all" in fields else fields["since"]
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error
        if not isinstance(begin, int):
            raise ValueError(f'invalid "since" {begin!r}: expected the number of the last checkpoint')
        return begin

    def apply(self, record: Record) -> bool:
        fields = _parsed(record.payload)
        try:
            return self._apply(fields)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error

    def _apply(self, fields: dict[str, Any]) -> bool:
        if "all" in fields:
            if fields["all"][0] == 0:
                self.shares = {}
            self.shares |= {name: SavedShare.unpacked(each) for name, each in fields["shared"].items()}
            return bool(fields["all"][0] == 0)
        name = fields["name"]
        if "set" in fields:
            self.shares.pop(name, None)
            if fields["set"] is not None:
                share = self.shares[name] = SavedShare(ShareOptions(**fields["set"]), fields.get("epoch", 0))
                share.redriven = fields.get("redriven", 0)
                share.streams = {
                    stream: StreamProgress(FinalNumbers(seq), seq) for stream, seq in fields["floors"].items()
                }
            return False
        changed = self.shares.get(name)
        if changed is not None:
            changed.epoch = max(changed.epoch, fields.get("epoch", 0))
            changed.paused = fields.get("paused", changed.paused)
            changed.redriven = max(changed.redriven, fields.get("redriven", 0))
            if "stream" in fields:
                changed.progress(fields["stream"]).apply(fields)
        return False


def pack(name: str, since: int, **fields: object) -> bytes:
    """Return the payload of a record of a change of the subscription *name*.

    :param since: number of the last checkpoint
    """
    return _dumped({"v": VERSION, "since": since, "name": name, **fields})


def pack_checkpoint(shares: Mapping[str, SavedShare], size: int = RECORD_SIZE) -> list[bytes]:
    """Return the payloads of a checkpoint's records, of which there is at least one; each ends behind *size* bytes."""
    pieces: list[dict[str, Any]] = [{}]
    filled = 0
    for name, share in shares.items():
        packed = share.packed()
        if filled > size:
            pieces.append({})
            filled = 0
        pieces[-1][name] = packed
        filled += len(_dumped(packed))
    count = len(pieces)
    return [_dumped({"v": VERSION, "all": [index, count], "shared": piece}) for index, piece in enumerate(pieces)]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return *ranges* in ascending order; those that overlap or follow each other become one."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def packed_ranges(ranges: Iterable[tuple[int, int]]) -> list[int | tuple[int, int]]:
    """Return *ranges* for JSON: pairs of numbers, or only the number where a range has one record."""
    return [first if first == last else (first, last) for first, last in ranges]


def _pairs(ranges: Iterable[Any]) -> Iterator[tuple[int, int]]:
    for each in ranges:
        first, last = (each, each) if isinstance(each, int) else each
        if not 0 < first <= last <= LAST_SEQ:
            raise ValueError(f"invalid range {each!r}: expected a number, or [first, last], from 1 to {LAST_SEQ}")
        yield first, last


def _letter(fields: Any) -> DeadLetter:
    seq, failures, why, time = fields
    return seq, failures, why, time


def _dumped(fields: Mapping[str, object]) -> bytes:
    return _encode(fields).encode()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(data)
        version = fields["v"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected a JSON object with a version: {error!r}") from error
    if version != VERSION:
        raise ValueError(f"the record has version {version!r}; this Fyrehose reads version {VERSION}")
    if not any(key in fields for key in ("all", "name")):
        raise ValueError(f'expected "name" or "all" in the record, not only {", ".join(sorted(fields))[:80]!r}')
    return fields
