"""The durable state of all subscriptions, and its records in the stream ``.subscriptions``.

    {"v": 2, "since": 17, "name": "billing", "set": {"stream": "orders", "lease": 30, ...},
     "floors": {"orders": 0}, "epoch": 16, "redriven": 0}                                            created
    {"v": 2, "since": 17, "name": "billing", "set": null}                                            deleted
    {"v": 2, "since": 17, "name": "billing", "stream": "orders", "epoch": 7, "reach": 5200,
     "final": [[4100, 4180], 4190], "dead": [4185], "letters": [[4185, 5, "limit", TIME]],
     "expired": [], "ends": [[4181, 4183, 2, 1]]}                                                    a change
    {"v": 2, "since": 17, "name": "copy", "owner": "link 5", "epoch": 9}           another consumer has taken it over
    {"v": 2, "since": 17, "name": "billing", "redriven": 300}                  see SavedSubscription.redriven
    {"v": 2, "since": 17, "name": "logs", "forget": ["logs.a"], "forgotten": [7, 0, 1, 0]}     retired streams
    {"v": 2, "since": 17, "name": "billing", "state": {...}, "streams": {"orders": {...}}}   a part of a checkpoint
    {"v": 2, "since": 21, "name": ""}                                                        its end

A checkpoint has the state of each subscription with a part of the progress in its streams; other parts, of other
streams or with further ranges of the same, follow in records without ``state``.
``ends`` has ranges of records, and for each how many of its leases have ended, and how many of them failed.  ``rewind``
in a change forgets everything about the stream, and continues behind that number.  ``hold`` has the records that were
leased at an orderly stop; with it ``reach`` may become lower.  ``letters`` has for each dead letter its failures, why
it became one (``limit``, or the reason that a worker gave with its rejection), and when.  ``lost`` counts dead records
that have no copy.
:mod:`~fyrehose.broker.state_stream` explains how such a stream is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from fyrehose.identity import Identity, network_of
from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ, Record
from fyrehose.spans import NumberSet, Ranges, Spans

#: The stream of the subscriptions, and the source of its records, and of dead letters.
STREAM, SOURCE = ".subscriptions", "server-subscriptions"
VERSION = 2
#: One record of a checkpoint has at most this many parts, and each of them this many ranges.
PARTS, RANGES = 50, 100
#: The ways in which a record becomes final, and the fields of a change that list such records.
FINAL = ("settled", "dead", "expired")
#: What is counted of each stream: these, and the dead records without a copy, whose dead letter was refused for good.
COUNTED = (*FINAL, "lost")
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
    :ivar unwritten: whether the number that it begins behind is not in the journal yet, so that the next change says it
    :ivar ends: for records that are not final: how many of their leases have ended, and how many of them failed
    :ivar counts: how many records there were of each kind of :data:`COUNTED`
    :ivar letters: the details of the last dead letters
    """

    final: NumberSet = attrs.field(factory=NumberSet)
    reach: int = 0
    ends: Spans[Ended] = attrs.field(factory=Spans)
    counts: dict[str, int] = attrs.field(factory=partial(dict.fromkeys, COUNTED, 0))
    letters: list[DeadLetter] = attrs.field(factory=list)
    hold: Ranges | None = None
    unwritten: bool = False

    @property
    def begun(self) -> bool:
        """Return whether any record was leased or is final since the subscription was created."""
        return self.reach > self.final.floor or any(self.counts.values())

    def apply(self, change: Mapping[str, Any]) -> None:
        """Update the progress by *change*, the fields of a record in the stream ``.shared``."""
        self.unwritten = False
        if "rewind" in change:
            self.final, self.reach, self.ends = NumberSet(change["rewind"]), change["rewind"], Spans()
            self.hold = None
        for kind, name in _FIELDS:
            for first, last in pairs(change[kind]) if kind in change else ():
                self.counts[name] += self.final.add(first, last)
                if self.ends:
                    self.ends.remove(first, last)
        self.reach = max(self.reach, change.get("reach", 0))
        if "hold" in change:
            self.reach, self.hold = change["reach"], pairs(change["hold"])
        self.counts["lost"] += change.get("lost", 0)
        if "letters" in change:
            self.letters = [*self.letters, *map(_letter, change["letters"])][-KEPT_LETTERS:]
        for first, last, deliveries, failures in change.get("ends", ()):
            for low, high in self.final.gaps(first, last):
                self.ends.set(low, high, (deliveries, failures))

    def part(self, behind: int) -> tuple[dict[str, Any], int]:
        """Return the next part of the progress, in the form that a checkpoint stores; and the number that it ends with.

        :param behind: the number with which the last part has ended; 0: this is the first one
        :return: an object for JSON, and LAST_SEQ if there is no further part
        """
        above, ends = self.final.above(behind, RANGES), self.ends.behind(behind, RANGES)
        end = min([LAST_SEQ, *(of[-1][1] for of in (above, ends) if len(of) == RANGES)])
        fields = {
            "floor": self.final.floor,
            "above": [(first, min(last, end)) for first, last in above if first <= end],
            "reach": self.reach,
            "ends": [(first, min(last, end), *state) for first, last, state in ends if first <= end],
            "counts": list(self.counts.values()),
            "letters": self.letters,
            "hold": self.hold,
        }
        return fields, end

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add a part of a checkpoint: it is true, and what it says nothing about is in other parts of it."""
        for first, last in [(1, fields["floor"]), *fields["above"]]:
            self.final.add(first, last)
            if self.ends and first <= self.ends.last:  # a change before this part did not know that they are final
                self.ends.remove(first, last)
        for first, last, deliveries, failures in fields["ends"]:
            self.ends.set(first, last, (deliveries, failures))
        self.reach = fields["reach"]
        self.counts = dict(zip(COUNTED, fields["counts"], strict=True))
        self.letters = list(map(_letter, fields["letters"]))
        self.hold = None if fields["hold"] is None else pairs(fields["hold"])


@attrs.define
class SavedSubscription:
    """The durable state of one subscription.

    :ivar epoch: a number that begins above the epochs of earlier subscriptions of this name, and is raised by each
        rewind, by each server that leases records, and when another consumer takes over
    :ivar streams: its progress by stream; a stream that is not here begins with its first record
    :ivar redriven: the dead letters up to this number, in their stream, were published again, or are of an earlier
        subscription of the name
    :ivar forgotten: the counts of the streams whose progress was forgotten
    :ivar owner: the consumer that alone may continue without taking over, such as a link; empty: none
    :ivar rewinds: how often one of its streams was rewound, so that a consumer knows that records come again on purpose
    :ivar time: the last change, in microseconds since 1970 UTC
    """

    options: SubscriptionOptions
    epoch: int = 0
    paused: bool = False
    streams: dict[str, StreamProgress] = attrs.field(factory=dict)
    redriven: int = 0
    forgotten: dict[str, int] = attrs.field(factory=partial(dict.fromkeys, COUNTED, 0))
    owner: str = ""
    rewinds: int = 0
    time: int = 0

    def progress(self, stream: str) -> StreamProgress:
        """Return the progress in *stream*; if there is none yet, it begins with the first record from now on."""
        if stream not in self.streams:
            self.streams[stream] = StreamProgress()
        return self.streams[stream]

    def forgetting(self, streams: Collection[str]) -> dict[str, object]:
        """Return the fields of a change that forgets the progress in *streams*, but for their floors and counts.

        They have the sums of counts, not what is added: several records of one batch may have these fields.
        """
        counts = [self.streams[stream].counts for stream in streams]
        sums = [self.forgotten[kind] + sum(each[kind] for each in counts) for kind in COUNTED]
        return {"forget": list(streams), "forgotten": sums}

    def total(self, kind: str) -> int:
        """Return the count of *kind* in all streams, also in those that were forgotten."""
        return self.forgotten[kind] + sum(progress.counts[kind] for progress in self.streams.values())

    def apply(self, change: Mapping[str, Any]) -> None:
        """Update the state by *change*, the fields of a record."""
        if "streams" in change:
            for stream, part in change["streams"].items():
                self.progress(stream).add(part)
            return
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
        if "forget" in change:
            for stream in change["forget"]:
                if stream in self.streams:  # Created again, it does not begin before its floor.
                    floor = self.streams[stream].final.floor
                    self.streams[stream] = StreamProgress(NumberSet(floor), floor)
            self.forgotten = dict(zip(COUNTED, change["forgotten"], strict=True))

    def packed(self) -> dict[str, Any]:
        """Return the state without the streams as an object for JSON, as :meth:`unpacked` reads it."""
        return attrs.asdict(self, recurse=False) | {"options": attrs.asdict(self.options), "streams": {}}

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any]) -> SavedSubscription:
        return cls(**{**fields, "options": SubscriptionOptions.unpacked(fields["options"]), "streams": {}})

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
        """Return the number at which the last checkpoint begins."""
        begin = _parsed(newest.payload).get("since")
        if not isinstance(begin, int):
            raise ValueError(f'invalid "since" {begin!r}: expected the number of the last checkpoint')
        return begin

    def apply(self, record: Record) -> None:
        fields = _parsed(record.payload)
        try:
            self._apply(fields, record.time)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error

    def _apply(self, fields: dict[str, Any], time: int) -> None:
        name = fields["name"]
        if "state" in fields:
            # A crash may have cut the checkpoint short, so keep the progress that other records of it would have.
            before = self.entries.get(name)
            self.entries[name] = SavedSubscription.unpacked(fields["state"])
            self.entries[name].streams = {} if before is None else before.streams
        if "set" in fields:
            self.entries.pop(name, None)
            if fields["set"] is not None:
                self.entries[name] = SavedSubscription.created(fields)
        elif name in self.entries:
            self.entries[name].apply(fields)
        if name in self.entries and "streams" not in fields:
            self.entries[name].time = time


def pack(name: str, since: int, fields: Mapping[str, object]) -> bytes:
    """Return the payload of a record of a change of the subscription *name*.

    :param since: number of the last checkpoint
    :raises ValueError: a text cannot be encoded
    """
    return _encode({"v": VERSION, "since": since, "name": name, **fields}).encode()


def pack_whole(name: str, since: int, saved: SavedSubscription) -> Iterator[bytes]:
    """Yield the payloads of the records by which a checkpoint stores the subscription *name*.

    *saved* may change between two payloads: each has the state of its time.

    :param since: number of the last checkpoint
    """
    fields, parts = {"state": saved.packed()}, dict[str, object]()
    for stream in list(saved.streams):
        end = 0
        while end < LAST_SEQ and stream in saved.streams:
            parts[stream], end = saved.streams[stream].part(end)
            if end < LAST_SEQ or len(parts) == PARTS:
                yield pack(name, since, {**fields, "streams": parts})
                fields, parts = {}, {}
    if fields or parts:
        yield pack(name, since, {**fields, "streams": parts})


def packed_ranges(ranges: Iterable[tuple[int, int]]) -> list[int | tuple[int, int]]:
    """Return *ranges* for JSON: pairs of numbers, or only the number where a range has one record."""
    packed: list[int | tuple[int, int]] = []
    for first, last in ranges:
        packed.append(first if first == last else (first, last))
    return packed


def pairs(ranges: Iterable[Any]) -> Ranges:
    """Return the ranges that :func:`packed_ranges` has packed.

    :raises ValueError: a range is invalid
    """
    found: Ranges = []
    for each in ranges:
        first, last = (each, each) if isinstance(each, int) else each
        if not 0 < first <= last <= LAST_SEQ:
            raise ValueError(f"invalid range {each!r}: expected a number, or [first, last], from 1 to {LAST_SEQ}")
        found.append((first, last))
    return found


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
    if "name" not in fields:
        raise ValueError(f'expected "name" in the record, not only {", ".join(sorted(fields))[:80]!r}')
    return fields
