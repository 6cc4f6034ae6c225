"""The publisher's sliding window: all unacknowledged messages, in the order of their numbers (figg.md, "Publish").

publish -> waiting, while the window is full -> sent -> acknowledged
                                                resent, in the same order, on every new connection
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs
from twisted.internet.defer import Deferred

from fyrehose.errors import LocalProtocolError
from fyrehose.records import Run


@attrs.define(eq=False)
class _Entry:
    """Messages that were published by one call, or a part of them.

    :ivar run: the messages; its stream is the topic
    :ivar first: ``seq_num`` of the first message
    :ivar done: fires when all messages of the call are acknowledged; None in all parts but the last
    """

    run: Run
    first: int
    done: Deferred[None] | None

    @property
    def last(self) -> int:
        return self.first + len(self.run) - 1


@attrs.define(eq=False)
class PublishWindow:
    """Unacknowledged messages of one client, which outlive its connections.

    :ivar max_messages: limit of messages that are sent and not acknowledged
    :ivar max_bytes: limit of all unacknowledged payloads, sent or waiting; one call may exceed it
    """

    max_messages: int
    max_bytes: int
    _sent: deque[_Entry] = attrs.field(factory=deque, init=False)
    _waiting: deque[_Entry] = attrs.field(factory=deque, init=False)
    _next: int = attrs.field(default=1, init=False)
    _in_flight: int = attrs.field(default=0, init=False)
    _held: int = attrs.field(default=0, init=False)

    @property
    def has_room(self) -> bool:
        """Whether a message that is published now can be sent immediately."""
        return not self._waiting and self._in_flight < self.max_messages and self._held < self.max_bytes

    @property
    def empty(self) -> bool:
        """Whether every published message is acknowledged."""
        return not self._sent and not self._waiting

    def add(self, run: Run) -> Deferred[None]:
        """Append messages, and number them.

        :return: a Deferred that fires when all of these messages are acknowledged
        :raises LocalProtocolError: more than ``max_bytes`` are unacknowledged; wait for :attr:`has_room`
        """
        if self._held > self.max_bytes:
            raise LocalProtocolError(f"{self._held} unacknowledged bytes, limit {self.max_bytes}: wait for ready()")
        done: Deferred[None] = Deferred()
        if not len(run):
            done.callback(None)
            return done
        self._held += run.size
        for part in _parts(run, self.max_messages):
            self._waiting.append(_Entry(part, self._next, None))
            self._next += len(part)
        self._waiting[-1].done = done
        return done

    def to_send(self) -> Iterator[tuple[int, Run]]:
        """Move messages that fit into the window from waiting to sent.

        :return: pairs of the first number and the messages
        """
        while self._waiting and (room := self.max_messages - self._in_flight) > 0:
            entry = self._waiting.popleft()
            count = len(entry.run)
            if count > room:
                self._waiting.appendleft(_Entry(entry.run.slice(room, count), entry.first + room, entry.done))
                entry = _Entry(entry.run.slice(0, room), entry.first, None)
            self._sent.append(entry)
            self._in_flight += len(entry.run)
            yield entry.first, entry.run

    def to_resend(self) -> list[tuple[int, Run]]:
        """Return all sent messages that are not acknowledged, as pairs of the first number and the messages."""
        return [(entry.first, entry.run) for entry in self._sent]

    def acknowledged(self, number: int) -> None:
        """Remove the messages up to and including ``number``, and fire the Deferreds of completed calls."""
        done = []
        while self._sent and self._sent[0].last <= number:
            entry = self._sent.popleft()
            self._in_flight -= len(entry.run)
            self._held -= entry.run.size
            if entry.done is not None:
                done.append(entry.done)
        if self._sent and self._sent[0].first <= number:
            entry = self._sent[0]
            part = number - entry.first + 1
            rest = entry.run.slice(part, len(entry.run))
            self._in_flight -= part
            self._held -= entry.run.size - rest.size
            entry.run, entry.first = rest, number + 1
        for deferred in done:
            deferred.callback(None)

    def fail(self, reason: Exception) -> None:
        """Drop all messages, and fail every Deferred that has not fired with *reason*."""
        dead = [entry.done for entry in (*self._sent, *self._waiting) if entry.done is not None]
        self._sent.clear()
        self._waiting.clear()
        self._in_flight = self._held = 0
        for deferred in dead:
            deferred.errback(reason)


def _parts(run: Run, count: int) -> Iterator[Run]:
    """Split *run* into parts of at most *count* messages, so that slicing the oldest part stays cheap."""
    payload, begin = memoryview(run.payload), 0
    for start in range(0, len(run), count):
        lengths = memoryview(run.lengths)[4 * start : 4 * (start + count)]
        end = begin + sum(lengths.cast("I"))
        yield attrs.evolve(run, lengths=lengths, payload=payload[begin:end])
        begin = end
