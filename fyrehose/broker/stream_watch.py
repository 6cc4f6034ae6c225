"""Tell those who follow patterns of streams that a stream has begun, in turns.

    created, not durable yet -> its first records are durable -> queue -> (stream, watcher) -> ... -> watcher(stream)

A stream is told once it is durable, by this server or by the leader that it follows, so that all streams that a watcher
is not told are in the journal when it begins.  Thousands of watchers may compare each name with a costly pattern.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

import attrs
from twisted.logger import Logger

from fyrehose.net.turns import SteppedWork, Turns

log = Logger()
Watcher = Callable[[str], object]


@attrs.define(eq=False)
class StreamWatch:
    """The streams that are being created, and the watchers that are told when they have begun.

    :ivar turns: gives the work its turns
    :ivar unborn: the streams that were created, and have no durable record yet
    """

    turns: Turns
    unborn: set[str] = attrs.field(factory=set, init=False)
    _watchers: dict[Watcher, None] = attrs.field(factory=dict, init=False)
    _begun: deque[str] = attrs.field(factory=deque, init=False)
    _telling: bool = attrs.field(default=False, init=False)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call *watcher* with the name of each stream that begins from now on; return a function that ends the calls.

        The stream may have any number of records by then.
        """
        self._watchers[watcher] = None
        return lambda: self._watchers.pop(watcher, None)

    def durable(self, streams: Collection[str]) -> None:
        """Tell the watchers which of *streams* have begun; each of these has new durable records."""
        begun = [stream for stream in streams if stream in self.unborn]
        self.unborn.difference_update(begun)
        if self._watchers:
            self._begun.extend(begun)
        if self._begun and not self._telling:
            self._telling = True
            SteppedWork(self.turns, self._tell()).begin()

    def _tell(self) -> Iterator[None]:
        while self._begun:
            stream = self._begun.popleft()
            for watcher in tuple(self._watchers):
                if watcher in self._watchers:
                    try:
                        watcher(stream)
                    except Exception:  # the other watchers are told nevertheless
                        log.failure(
                            "telling a watcher of stream {stream!r} failed; please report this bug", stream=stream
                        )
                    yield
        self._telling = False
