"""Positions of named subscriptions on disk: a stream of the server's own holds them, as JSON objects.

    {"v": 1, "since": 17, "set": {"billing": {"stream": "orders", "position": 5, ...}, "old": null}}     changes
    {"v": 1, "all": true, "set": {...}}                                             a checkpoint: all subscriptions

``null`` deletes a subscription.  A subscription of a pattern also has ``"streams": {"logs.a": 7, ...}``; a change holds
only the numbers that have changed, and a stream without a number begins at 0.  ``since`` is the number of the last
checkpoint (0: there was none), so recovery reads only the records from there on (:mod:`~fyrehose.broker.state_stream`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from fyrehose.patterns import Pattern
from fyrehose.records import LAST_SEQ, Record

#: The stream of the positions, and the source of its records.
STREAM, SOURCE = ".subscriptions", "server-subscriptions"
VERSION = 1


@attrs.frozen(kw_only=True)
class Position:
    """The state of a named subscription: its stream, and the last record that was acknowledged.

    :ivar stream: the stream of the subscription, or the pattern of its streams
    :ivar seq: number of the last acknowledged record; 0: none, or the subscription is one of a pattern
    :ivar generation: raised when the subscription is rewound or another consumer takes it over
    :ivar rewinds: how often it was rewound, so that a consumer knows that records come again on purpose
    :ivar owner: the consumer that alone may continue without taking over, such as a link; empty: none
    :ivar creator: the network of the peer that created the subscription
    :ivar time: the last change, in microseconds since 1970 UTC
    :ivar streams: number of the last acknowledged record of each stream that matches the pattern, 0 for those that are
        not in it; None: ``stream`` is a name
    """

    stream: str
    seq: int
    generation: int = 1
    rewinds: int = 0
    owner: str = ""
    creator: str = ""
    time: int = 0
    streams: Mapping[str, int] | None = None

    def last(self, stream: str) -> int:
        """Return the number of the last acknowledged record of *stream*."""
        return self.seq if self.streams is None else self.streams.get(stream, 0)

    def moved(self, numbers: Mapping[str, int]) -> Position:
        """Return a copy with *numbers* as the last acknowledged records, by stream."""
        if self.streams is None:
            return attrs.evolve(self, seq=numbers[self.stream])
        return attrs.evolve(self, streams={**self.streams, **numbers})

    def without(self, streams: Collection[str]) -> Position:
        """Return a copy that has forgotten the positions in *streams*."""
        known = self.streams or {}
        return attrs.evolve(self, streams={stream: seq for stream, seq in known.items() if stream not in streams})

    def since(self, before: Position | None) -> Position:
        """Return a copy with only those positions of a pattern that differ from *before*, the last written state."""
        if self.streams is None or before is None or before.streams is None or before.stream != self.stream:
            return self
        streams = self.streams.keys() | before.streams.keys()
        differ = {stream: self.last(stream) for stream in streams if self.last(stream) != before.last(stream)}
        return attrs.evolve(self, streams=differ)


@attrs.define
class SavedPositions:
    """The positions that the stream holds, by subscription (a state of :mod:`~fyrehose.broker.state_stream`)."""

    positions: dict[str, Position] = attrs.field(factory=dict)

    def clear(self) -> None:
        self.positions = {}

    def begin(self, newest: Record) -> int:
        since = _parsed(newest.payload).get("since", newest.seq)
        if not isinstance(since, int):
            raise ValueError(f'invalid "since" {since!r}: expected the number of the last checkpoint')
        return since

    def apply(self, record: Record) -> bool:
        """Update the positions from *record*, and return whether it begins a checkpoint, which replaces all of them."""
        fields = _parsed(record.payload)
        whole = bool(fields.get("all"))
        if whole:
            self.positions = {}
        for name, state in fields["set"].items():
            before = self.positions.pop(name, None)
            if state is not None:
                self.positions[name] = _position(state, before)
        return whole


def takes(pattern: Pattern, stream: str) -> bool:
    """Return whether a subscription of *pattern* has a position in *stream*; never in the server's own streams."""
    return not stream.startswith(".") and pattern.covers(stream)


def pack(changes: Mapping[str, Position | None], since: int | None) -> bytes:
    """Return the payload of a record of *changes*.

    :param changes: for a subscription of a pattern, the position that :meth:`Position.since` returns
    :param since: number of the last checkpoint; None: the record is a checkpoint, and *changes* are all subscriptions
    """
    head: dict[str, object] = {"v": VERSION, "all": True} if since is None else {"v": VERSION, "since": since}
    named = {name: None if position is None else _fields(position) for name, position in changes.items()}
    return json.dumps({**head, "set": named}, ensure_ascii=False, separators=(",", ":")).encode()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(data)
        version, named = fields["v"], fields["set"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected a JSON object with the members v and set, not {data[:80]!r}: {error!r}") from error
    if version != VERSION or not isinstance(named, dict):
        raise ValueError(f"the record has version {version!r}; this Fyrehose reads version {VERSION}")
    return fields


def _fields(position: Position) -> dict[str, Any]:
    fields = attrs.asdict(position)
    if position.streams is None:
        del fields["streams"]
    return fields


def _position(state: object, before: Position | None) -> Position:
    try:
        position = Position(**state)  # type: ignore[arg-type]
        streams = {} if position.streams is None else position.streams
        valid = isinstance(position.stream, str) and all(
            0 <= seq <= LAST_SEQ for seq in (position.seq, *streams.values())
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(f"expected the fields of a position, not {state!r:.200}: {error}") from error
    if not valid:
        raise ValueError(f"expected a position with a stream and numbers from 0 to {LAST_SEQ}, not {state!r:.200}")
    if position.streams is None or before is None or before.streams is None or before.stream != position.stream:
        return position
    return attrs.evolve(position, streams={**before.streams, **position.streams})
