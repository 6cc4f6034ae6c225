"""The publisher's sliding window: what was published and is not acknowledged, in the order of its numbers.

publish -> waiting, while the window is full -> sent -> acknowledged
                                                sent again, in the same order, on every new connection
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
from twisted.internet.defer import Deferred

from fyrehose.errors import LocalProtocolError
from fyrehose.records import Run


@attrs.define(eq=False)
class _Entry:
    """Messages that were published together, or a part of them.

    :ivar run: its stream is the topic
    :ivar first: the first message's number
    :ivar done: fires when they are acknowledged; None but in the last part
    """

    run: Run
    first: int
    done: Deferred[None] | None

    @property
    def last(self) -> int:
        return self.first + len(self.run) - 1


@attrs.define(eq=False)
class Window:
    """What is not acknowledged.

    :ivar messages: how many messages may be sent and not acknowledged
    :ivar most: how many bytes may be held in all, sent or waiting
    """

    messages: int
    most: int
    _sent: deque[_Entry] = attrs.field(factory=deque, init=False)
    _waiting: deque[_Entry] = attrs.field(factory=deque, init=False)
    _next: int = attrs.field(default=1, init=False)
    _under_way: int = attrs.field(default=0, init=False)
    _held: int = attrs.field(default=0, init=False)
    _watchers: list[tuple[Callable[[], bool], Deferred[None]]] = attrs.field(factory=list, init=False)

    @property
    def room(self) -> bool:
        """Whether a message that is published now is sent now."""
        return not self._waiting and self._under_way < self.messages and self._held < self.most

    @property
    def empty(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._sent and not self._waiting

    def add(self, run: Run) -> Deferred[None]:
        """Messages to be sent; fires when all of them are acknowledged.

        :raises LocalProtocolError: more waits than may: whoever publishes has to wait for :meth:`when_room`
        """
        if self._held > self.most:
            raise LocalProtocolError(f"{self._held} bytes wait to be acknowledged: wait for ready() before publishing")
        done: Deferred[None] = Deferred()
        if not len(run):
            done.callback(None)
            return done
        self._held += run.size
        for part in _parts(run, self.messages):
            self._waiting.append(_Entry(part, self._next, None))
            self._next += len(part)
        self._waiting[-1].done = done
        return done

    def to_send(self) -> Iterator[tuple[int, Run]]:
        """What the window lets go now: first number and messages."""
        while self._waiting and (room := self.messages - self._under_way) > 0:
            entry = self._waiting.popleft()
            count = len(entry.run)
            if count > room:
                self._waiting.appendleft(_Entry(entry.run.slice(room, count), entry.first + room, entry.done))
                entry = _Entry(entry.run.slice(0, room), entry.first, None)
            self._sent.append(entry)
            self._under_way += len(entry.run)
            yield entry.first, entry.run

    def to_send_again(self) -> list[tuple[int, Run]]:
        """Everything that was sent and is not acknowledged."""
        return [(entry.first, entry.run) for entry in self._sent]

    def acknowledged(self, number: int) -> None:
        """Everything up to ``number`` is processed."""
        done = []
        while self._sent and self._sent[0].last <= number:
            entry = self._sent.popleft()
            self._under_way -= len(entry.run)
            self._held -= entry.run.size
            if entry.done is not None:
                done.append(entry.done)
        if self._sent and self._sent[0].first <= number:
            entry = self._sent[0]
            part = number - entry.first + 1
            rest = entry.run.slice(part, len(entry.run))
            self._under_way -= part
            self._held -= entry.run.size - rest.size
            entry.run, entry.first = rest, number + 1
        for deferred in done:
            deferred.callback(None)
        self._tell()

    def when_room(self) -> Deferred[None]:
        """Fires when :attr:`room` is true."""
        return self._when(lambda: self.room)

    def when_empty(self) -> Deferred[None]:
        """Fires when :attr:`empty` is true."""
        return self._when(lambda: self.empty)

    def fail(self, reason: Exception) -> None:
        """Nothing more will be acknowledged."""
        dead = [entry.done for entry in (*self._sent, *self._waiting) if entry.done is not None]
        dead += [deferred for _, deferred in self._watchers]
        self._sent.clear()
        self._waiting.clear()
        self._watchers.clear()
        self._under_way = self._held = 0
        for deferred in dead:
            deferred.errback(reason)

    def _when(self, condition: Callable[[], bool]) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        if condition():
            deferred.callback(None)
        else:
            self._watchers.append((condition, deferred))
        return deferred

    def _tell(self) -> None:
        watchers, self._watchers = self._watchers, []
        for condition, deferred in watchers:
            if condition():
                deferred.callback(None)
            else:
                self._watchers.append((condition, deferred))


def _parts(run: Run, count: int) -> Iterator[Run]:
    """``run`` in parts of at most ``count`` messages, so that the window can take a few from the front cheaply."""
    payload, begin = memoryview(run.payload), 0
    for start in range(0, len(run), count):
        lengths = memoryview(run.lengths)[4 * start : 4 * (start + count)]
        end = begin + sum(lengths.cast("I"))
        yield attrs.evolve(run, lengths=lengths, payload=payload[begin:end])
        begin = end
