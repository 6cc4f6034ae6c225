"""Recognize the dialect of each subscriber by its subscriptions, and keep both dialects apart in one socket.

Nothing else shows the dialect: a SUB socket sends only its subscriptions, and no frame connects them with the SYNCSTART
of the same client.  A subscriber is of the reference program if one of its subscriptions is no subtree as specified,
such as ``/example`` without a slash at its end.  Clients of both dialects use subtrees, and the subscription to
everything: subscribers with only these get the *usual* dialect, which is that of the option ``dialect``.  A
subscription to one of :data:`MARKS` names the dialect, whatever the other subscriptions are.

A XPUB socket passes each message to all subscribers of a prefix of its first frame.  In its manual mode the server says
what a subscriber is subscribed to.  So the server subscribes a subscriber of the *other* dialect to a *key* in place of
its prefix; a key begins with a byte that no topic begins with:

    prefix  /example    usual: /example       other: FF example

An event is sent twice, with its topic and with the key of its topic in front; ZMQPort replaces the key by the topic
once the receivers are chosen.  Keys of different prefixes may be equal: the subscriber's own socket then drops what it
has not subscribed to.

    in: the messages of XPUB with their connections, and the ends of connections      out: what to subscribe a sender to

Specification: event-bus.md, "State Synchronization", for the form of subtrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.frames import Dialect, is_subtree

#: Subscriptions by which a client names its dialect.
MARKS = {b"\0binary": Dialect.BINARY, b"\0decimal": Dialect.DECIMAL}
#: The first byte of keys; UTF-8 never contains it, so no topic begins with it.
OTHER = b"\xff"
#: The first bytes of all topics: a subscription to everything in the usual dialect.  An empty prefix would match keys.
FIRST_BYTES = tuple(bytes((byte,)) for byte in (*range(0x80), *range(0xC2, 0xF5)))
#: Upper bound of the memory of all subscriptions, in bytes, of which one network may take half; and the largest number
#: of subscriptions of one subscriber.
MEMORY = 256 << 20
MOST = 65_536
#: Memory of a subscription besides its prefix, of each byte of its prefix, and of a subscription to everything, in
#: bytes.
COST = 512
COST_BYTE = 4
COST_ALL = 10 << 10


@attrs.define(eq=False)
class _Subscriber:
    network: str
    dialect: Dialect
    marked: bool = False
    prefixes: set[bytes] = attrs.field(factory=set, init=False)
    #: the keys of the subscriber's prefixes, each with the number of prefixes that have it; the subscription to
    #: everything does not count
    keys: Counter[bytes] = attrs.field(factory=Counter, init=False)


@attrs.frozen(slots=True)
class Resubscribed:
    """A change of the prefixes to which the sender of a subscription is subscribed: those added, those removed."""

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


@attrs.define(eq=False)
class RecognizedSubscribers:
    """The subscribers of one PUBLISHER, by their connection.

    :ivar usual: the dialect of subscribers whose subscriptions do not show a dialect
    """

    usual: Dialect
    memory: FairShare[object] = attrs.field(factory=lambda: FairShare(MEMORY, each=MEMORY // 2), init=False)
    _all: dict[Hashable, _Subscriber] = attrs.field(factory=dict, init=False)
    _others: int = attrs.field(default=0, init=False)

    @property
    def other(self) -> Dialect:
        """Return the dialect that is not the usual one."""
        return Dialect.DECIMAL if self.usual is Dialect.BINARY else Dialect.BINARY

    @property
    def others(self) -> int:
        """Return the number of subscribers of the other dialect."""
        return self._others

    def dialect(self, connection: Hashable) -> Dialect:
        """Return the dialect of a subscriber, which is the usual one if its subscriptions do not show another."""
        found = self._all.get(connection)
        return self.usual if found is None else found.dialect

    def received(self, message: bytes, connection: Hashable, network: str) -> Resubscribed:
        """Process a message of XPUB: a byte 1 (subscribe) or 0 (unsubscribe), and a prefix.

        :raises RemoteProtocolError: the subscriber has too many subscriptions, and has to be disconnected
        """
        subscribes, prefix = message[:1] == b"\1", message[1:]
        found = self._all.get(connection)
        if found is None:
            found = self._all[connection] = _Subscriber(network, self.usual)
        marked = MARKS.get(prefix)
        if marked is not None:
            if found.marked or not subscribes:
                return Resubscribed()
            found.marked = True
            return self._change(found, marked)
        if not subscribes:
            return self._unsubscribe(found, prefix)
        before = Resubscribed()
        if not found.marked and not is_subtree(prefix):
            before = self._change(found, Dialect.DECIMAL)
        added = self._subscribe(found, prefix)
        return Resubscribed((*before.added, *added), before.removed)

    def left(self, connection: Hashable) -> None:
        """Forget a subscriber whose connection has ended."""
        found = self._all.pop(connection, None)
        if found is not None:
            self.memory.give(found.network, sum(map(_cost, found.prefixes)))
            self._others -= found.dialect is not self.usual

    def key_of(self, topic: bytes) -> bytes:
        """Return the key of events of *topic* for subscribers of the other dialect."""
        return OTHER + topic[1:]

    def _subscribe(self, found: _Subscriber, prefix: bytes) -> tuple[bytes, ...]:
        keys = self._keys(found.dialect, prefix)
        if prefix not in found.prefixes:
            cost = _cost(prefix)
            if len(found.prefixes) >= MOST or not self.memory.fits(cost, found.network):
                detail = f"{len(found.prefixes) + 1} subscriptions: connection closed; subscribe to fewer prefixes"
                raise RemoteProtocolError("too-many-subscriptions", detail)
            self.memory.take(found.network, cost)
            found.prefixes.add(prefix)
            if keys is not FIRST_BYTES:
                found.keys.update(keys)
        return keys

    def _unsubscribe(self, found: _Subscriber, prefix: bytes) -> Resubscribed:
        if prefix not in found.prefixes:
            return Resubscribed()
        found.prefixes.remove(prefix)
        self.memory.give(found.network, _cost(prefix))
        keys, kept = self._keys(found.dialect, prefix), self._everything(found)
        if keys is FIRST_BYTES:
            return Resubscribed(removed=tuple(key for key in keys if not found.keys[key]))
        found.keys.subtract(keys)
        removed = tuple(key for key in keys if not found.keys[key])
        for key in removed:
            del found.keys[key]
        return Resubscribed(removed=tuple(key for key in removed if key not in kept))

    def _everything(self, found: _Subscriber) -> tuple[bytes, ...]:
        """Return the keys of a subscription to everything in the usual dialect, if the subscriber has one."""
        return FIRST_BYTES if b"" in found.prefixes and found.dialect is self.usual else ()

    def _change(self, found: _Subscriber, dialect: Dialect) -> Resubscribed:
        """Change the dialect of a subscriber, and so the keys of all its subscriptions."""
        if dialect is found.dialect:
            return Resubscribed()
        removed = (*found.keys, *self._everything(found))
        self._others += 1 if dialect is not self.usual else -1
        found.dialect = dialect
        every = self._everything(found)
        prefixes = found.prefixes - {b""} if every else found.prefixes
        found.keys = Counter(key for prefix in prefixes for key in self._keys(dialect, prefix))
        return Resubscribed((*found.keys, *every), removed)

    def _keys(self, dialect: Dialect, prefix: bytes) -> tuple[bytes, ...]:
        if dialect is not self.usual:
            return (OTHER + prefix[1:],)
        if not prefix:
            return FIRST_BYTES
        return () if prefix.startswith(OTHER) else (prefix,)


def _cost(prefix: bytes) -> int:
    return COST + COST_BYTE * len(prefix) if prefix else COST_ALL


def unclear(prefixes: Iterable[bytes]) -> bool:
    """Return whether subscriptions to *prefixes* leave the dialect open, because both dialects use each prefix."""
    return all(is_subtree(prefix) for prefix in prefixes)
