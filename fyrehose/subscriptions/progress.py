"""The durable state of all subscriptions, and its records in the stream ``.subscriptions``.

    {"v": 2, "since": 17, "name": "billing", "set": {"stream": "orders", "lease": 30, ...},
     "floors": {"orders": 0}, "epoch": 16, "redriven": 0}                                            created
    {"v": 2, "since": 17, "name": "billing", "set": null}                                            deleted
    {"v": 2, "since": 17, "name": "billing", "stream": "orders", "epoch": 7, "reach": 5200,
     "final": [[4100, 4180], 4190], "dead": [4185], "letters": [[4185, 5, "limit", TIME]],
     "expired": [], "ends": [[4181, 4183, 2, 1]]}                                                    a change
    {"v": 2, "since": 17, "name": "copy", "owner": "link 5", "epoch": 9}           another consumer has taken it over
    {"v": 2, "since": 17, "name": "billing", "redriven": 300}                  see SavedSubscription.redriven
    {"v": 2, "all": [INDEX, COUNT], "entries": {"billing": {...}}}                                   a checkpoint

``ends`` has ranges of records, and for each how many of its leases have ended, and how many of them failed.  ``rewind``
in a change forgets everything about the stream, and continues behind that number.  ``hold`` has the records that were
leased at an orderly stop; with it ``reach`` may become lower.  ``letters`` has for each dead letter its failures, why
it became one (``limit``, or the reason that a worker gave with its rejection), and when.  ``lost`` counts dead records
that have no copy.
:mod:`~fyrehose.broker.state_stream` explains how such a stream is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from fyrehose.identity import Identity, network_of
from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ, Record
from fyrehose.spans import NumberSet, Ranges, Spans

#: The stream of the subscriptions, and the source of its records, and of dead letters.
STREAM, SOURCE = ".subscriptions", "server-subscriptions"
VERSION = 2
#: A checkpoint begins another record when its last record is larger than this, in bytes.
RECORD_SIZE = 64 << 10
#: The ways in which a record becomes final, and the fields of a change that list such records.
FINAL = ("settled", "dead", "expired")
_FIELDS = (("final", "settled"), ("dead", "dead"), ("expired", "expired"))
#: How many of the latest dead letters of one stream are kept with their details; older ones are only counted.
KEPT_LETTERS = 20

#: One encoder for all calls, because json.dumps() makes a new one for each call with other options than the defaults.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

#: The number of a record, its failures, why it became a dead letter, and when, in microseconds since 1970 UTC.
DeadLetter = tuple[int, int, str, int]
#: How many leases of a record have ended, and how many of them failed.
Ended = tuple[int, int]


@attrs.frozen(kw_only=True)
class Creator:
    """The peer that created a subscription, whose rights and quotas apply to its dead letters.

    :ivar host: its address; empty: the server itself
    :ivar signed: whether its rights came from a signed token, which ends long before the subscription; then its rights
        are those that it had when it created the subscription
    """

    host: str = ""
    certificates: tuple[str, ...] = ()
    key: str | None = None
    token: str | None = attrs.field(default=None, repr=False)
    signed: bool = False

    @classmethod
    def of(cls, identity: Identity) -> Creator:
        signed = identity.signed is not None
        return cls(
            host=identity.host,
            certificates=identity.certificates,
            key=identity.key,
            token=identity.token,
            signed=signed,
        )

    @property
    def identity(self) -> Identity:
        return Identity(host=self.host, certificates=self.certificates, key=self.key, token=self.token)

    @property
    def network(self) -> str:
        """Return the network of the peer, for which the subscription counts; empty: the server itself."""
        return network_of(self.host) if self.host else ""


@attrs.frozen(kw_only=True)
class SubscriptionOptions:
    """The options that a subscription was created with; they never change.

    :ivar stream: the stream of the subscription, or, with *pattern*, the pattern of its streams
    :ivar ack: ``each``: it is shared, and workers settle each record; ``all``: it is exclusive, and its one consumer
        acknowledges all records up to a number, so that the options below have no meaning
    :ivar lease: how long a worker has a record, in seconds
    :ivar limit: the failure that makes a record a dead letter; 0: none does
    :ivar window: how many records up to the highest leased one may be not final at a time
    :ivar most: how many records one consumer may hold
    :ivar dead: the stream of the dead letters; None: they are only counted
    :ivar key: records of the same key are handled in order: ``topic``, ``producer``, a member of JSON objects, or None
    """

    stream: str
    pattern: bool = False
    ack: str = "each"
    lease: int = 30
    limit: int = 5
    window: int = 1_000
    most: int = 100
    dead: str | None = None
    key: str | None = None
    creator: Creator = attrs.field(factory=Creator, eq=False)

    @property
    def shared(self) -> bool:
        return self.ack == "each"

    @property
    def kind(self) -> str:
        """Return the kind of the subscription, as it is shown to people."""
        return "shared" if self.shared else "pattern" if self.pattern else "stream"

    def may_have(self, stream: str) -> bool:
        """Return whether a pattern may have *stream*: it is not one of the server's, nor that of the dead letters."""
        return stream[0] != "." and stream != self.dead

    def takes(self, pattern: Pattern, stream: str) -> bool:
        """Return whether *stream* is one of the subscription, whose *pattern* covers it."""
        return self.may_have(stream) and pattern.covers(stream)

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> SubscriptionOptions:
        creator = {**fields["creator"], "certificates": tuple(fields["creator"]["certificates"])}
        return cls(**{**fields, "creator": Creator(**creator)})


@attrs.define
class StreamProgress:
    """The progress of a subscription in one stream.

    :ivar reach: no record with a higher number was ever leased
    :ivar hold: the records that were leased at an orderly stop; None: all up to *reach* may have been
    :ivar ends: for records that are not final: how many of their leases have ended, and how many of them failed
    :ivar counts: how many records became final in each of the ways of :data:`FINAL`
    :ivar letters: the details of the last dead letters
    :ivar lost: how many dead records have no copy, because their dead letter was refused for good
    """

    final: NumberSet = attrs.field(factory=NumberSet)
    reach: int = 0
    ends: Spans[Ended] = attrs.field(factory=Spans)
    counts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(FINAL, 0))
    letters: list[DeadLetter] = attrs.field(factory=list)
    lost: int = 0
    hold: Ranges | None = None

    @property
    def begun(self) -> bool:
        """Return whether any record was leased or is final since the subscription was created."""
        return self.reach > self.final.floor or any(self.counts.values())

    def apply(self, change: Mapping[str, Any]) -> None:
        """Update the progress by *change*, the fields of a record in the stream ``.shared``."""
        if "rewind" in change:
            self.final, self.reach, self.ends = NumberSet(change["rewind"]), change["rewind"], Spans()
            self.hold = None
        for kind, name in _FIELDS:
            for first, last in pairs(change.get(kind, ())):
                self.counts[name] += self.final.add(first, last)
                if self.ends:
                    self.ends.remove(first, last)
        self.reach = max(self.reach, change.get("reach", 0))
        if "hold" in change:
            self.reach, self.hold = change["reach"], list(pairs(change["hold"]))
        self.lost += change.get("lost", 0)
        if "letters" in change:
            self.letters = [*self.letters, *map(_letter, change["letters"])][-KEPT_LETTERS:]
        for first, last, deliveries, failures in change.get("ends", ()):
            for low, high in self.final.gaps(first, last):
                self.ends.set(low, high, (deliveries, failures))

    def packed(self) -> dict[str, Any]:
        """Return the progress as an object for JSON, in the form that a checkpoint stores."""
        return {
            "floor": self.final.floor,
            "above": self.final.above(),
            "reach": self.reach,
            "ends": [(span.first, span.last, *span.state) for span in self.ends],
            "counts": list(self.counts.values()),
            "letters": self.letters,
            "lost": self.lost,
            "hold": self.hold,
        }

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> StreamProgress:
        """Return the progress that the *fields* of :meth:`packed` describe."""
        final = NumberSet(fields["floor"], [(first, last) for first, last in fields["above"]])
        counts = dict(zip(FINAL, fields["counts"], strict=True))
        letters = list(map(_letter, fields["letters"]))
        found = cls(final, fields["reach"], counts=counts, letters=letters, lost=fields["lost"])
        if fields["hold"] is not None:
            found.hold = list(pairs(fields["hold"]))
        for first, last, deliveries, failures in fields["ends"]:
            found.ends.set(first, last, (deliveries, failures))
        return found


@attrs.define
class SavedSubscription:
    """The durable state of one subscription.

    :ivar epoch: a number that begins above the epochs of earlier subscriptions of this name, and is raised by each
        rewind, by each server that leases records, and when another consumer takes over
    :ivar streams: its progress by stream; a stream that is not here begins with its first record
    :ivar redriven: the dead letters up to this number, in their stream, were published again, or are of an earlier
        subscription of the name
    :ivar owner: the consumer that alone may continue without taking over, such as a link; empty: none
    :ivar rewinds: how often one of its streams was rewound, so that a consumer knows that records come again on purpose
    :ivar time: the last change, in microseconds since 1970 UTC
    """

    options: SubscriptionOptions
    epoch: int = 0
    paused: bool = False
    streams: dict[str, StreamProgress] = attrs.field(factory=dict)
    redriven: int = 0
    owner: str = ""
    rewinds: int = 0
    time: int = 0

    def progress(self, stream: str) -> StreamProgress:
        """Return the progress in *stream*; if there is none yet, it begins with the first record from now on."""
        found = self.streams.get(stream)
        if found is None:
            found = self.streams[stream] = StreamProgress()
        return found

    def apply(self, change: Mapping[str, Any]) -> None:
        """Update the state by *change*, the fields of a record."""
        self.apply_whole(change)
        if "stream" in change:
            self.rewinds += "rewind" in change
            self.progress(change["stream"]).apply(change)

    def apply_whole(self, change: Mapping[str, Any]) -> None:
        """Update the state by those fields of *change* that concern the subscription as a whole."""
        if "epoch" in change:  # A server begins to lease, or a consumer to read.
            self.epoch = max(self.epoch, change["epoch"])
            for progress in self.streams.values():
                progress.hold = None
        self.paused = change.get("paused", self.paused)
        self.owner = change.get("owner", self.owner)
        self.redriven = max(self.redriven, change.get("redriven", 0))

    def packed(self) -> dict[str, Any]:
        """Return the fields that a checkpoint stores, for JSON; :meth:`unpacked` reads them."""
        streams = {name: progress.packed() for name, progress in self.streams.items()}
        return attrs.asdict(self, recurse=False) | {"options": attrs.asdict(self.options), "streams": streams}

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> SavedSubscription:
        streams = {name: StreamProgress.unpacked(progress) for name, progress in fields["streams"].items()}
        return cls(**{**fields, "options": SubscriptionOptions.unpacked(fields["options"]), "streams": streams})

    @classmethod
    def created(cls, fields: Mapping[str, Any]) -> SavedSubscription:
        """Return the state after the record with *fields*, which creates the subscription."""
        streams = {stream: StreamProgress(NumberSet(seq), seq) for stream, seq in fields["floors"].items()}
        options = SubscriptionOptions.unpacked(fields["set"])
        return cls(options, fields["epoch"], streams=streams, redriven=fields["redriven"])


@attrs.define
class SavedSubscriptions:
    """All subscriptions, by name (a state of :mod:`~fyrehose.broker.state_stream`)."""

    entries: dict[str, SavedSubscription] = attrs.field(factory=dict)

    def clear(self) -> None:
        self.entries = {}

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
            return self._apply(fields, record.time)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error

    def _apply(self, fields: dict[str, Any], time: int) -> bool:
        if "all" in fields:
            if fields["all"][0] == 0:
                self.entries = {}
            self.entries |= {name: SavedSubscription.unpacked(each) for name, each in fields["entries"].items()}
            return bool(fields["all"][0] == 0)
        name = fields["name"]
        if "set" in fields:
            self.entries.pop(name, None)
            if fields["set"] is not None:
                self.entries[name] = SavedSubscription.created(fields)
        elif name in self.entries:
            self.entries[name].apply(fields)
        if name in self.entries:
            self.entries[name].time = time
        return False


def pack(name: str, since: int, fields: Mapping[str, object]) -> bytes:
    """Return the payload of a record of a change of the subscription *name*.

    :param since: number of the last checkpoint
    :raises ValueError: a text cannot be encoded
    """
    return dumped({"v": VERSION, "since": since, "name": name, **fields})


def pack_checkpoint(entries: Mapping[str, SavedSubscription], size: int = RECORD_SIZE) -> list[bytes]:
    """Return the payloads of a checkpoint's records, of which there is at least one; each ends behind *size* bytes."""
    pieces: list[dict[str, Any]] = [{}]
    filled = 0
    for name, saved in entries.items():
        packed = saved.packed()
        if filled > size:
            pieces.append({})
            filled = 0
        pieces[-1][name] = packed
        filled += len(dumped(packed))
    count = len(pieces)
    return [dumped({"v": VERSION, "all": [index, count], "entries": piece}) for index, piece in enumerate(pieces)]


def packed_ranges(ranges: Iterable[tuple[int, int]]) -> list[int | tuple[int, int]]:
    """Return *ranges* for JSON: pairs of numbers, or only the number where a range has one record."""
    return [first if first == last else (first, last) for first, last in ranges]


def pairs(ranges: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that :func:`packed_ranges` has packed.

    :raises ValueError: a range is invalid
    """
    for each in ranges:
        first, last = (each, each) if isinstance(each, int) else each
        if not 0 < first <= last <= LAST_SEQ:
            raise ValueError(f"invalid range {each!r}: expected a number, or [first, last], from 1 to {LAST_SEQ}")
        yield first, last


def dumped(fields: Mapping[str, object]) -> bytes:
    """Return *fields* as JSON.

    :raises ValueError: a text cannot be encoded
    """
    return _encode(fields).encode()


def _letter(fields: Any) -> DeadLetter:
    seq, failures, why, time = fields
    return seq, failures, why, time


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
