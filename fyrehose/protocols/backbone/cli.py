"""The backbone for ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer, moduleProvides

from fyrehose.errors import Closed, ConfigError
from fyrehose.interfaces import IClients, ITailer
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.client_session import Options
from fyrehose.records import Run

moduleProvides(IClients)

log = Logger()

default_port = 2323

#: Ranges that an error names.
MOST_NAMED = 10
#: A datagram may be lost; what is pushed again may come out twice.
RETRIES = 5


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> BackboneClient:
    """A client that confirms each push by its coming back."""
    _only(stream)
    return _client(reactor, host, port, Options(window=window, retries=RETRIES))


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> BackboneTailer:
    """A subscriber that repairs what it missed."""
    _only(stream)

    def gap(first: int, last: int) -> None:
        made.given_up = [*made.given_up[-MOST_NAMED:], (first, last)]
        lost(first, last)

    made = BackboneTailer(
        lambda after: _client(
            reactor, host, port, Options(after=after), on_records=take, on_gap=gap, on_alive=made.heard
        ),
        after,
    )
    return made


def _client(reactor: Any, host: str, port: int, options: Options, **told: Any) -> BackboneClient:
    """One that waits for its server, as those of other protocols do: whoever made it has patience, or none."""
    return BackboneClient(reactor, host, port, options=options, persistent=True, **told)


@implementer(ITailer)
@attrs.define(eq=False)
class BackboneTailer:
    """A subscriber that can pause.  UDP cannot, so it leaves, and comes back as one that has missed something.

    :ivar make: makes a client that begins behind a number
    :ivar after: that number
    :ivar given_up: the latest ranges that nobody answered for
    """

    make: Callable[[int | None], BackboneClient]
    after: int | None
    given_up: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _client: BackboneClient | None = attrs.field(default=None, init=False)
    _alive: bool = attrs.field(default=False, init=False)

    def connect(self) -> Deferred[None]:
        self._client = self.make(self.after)
        return self._client.connect()

    def pause(self) -> None:
        if self._client is not None:
            position = self._client.position
            self.after = self.after if position is None else position
            self._client.close()
            self._client = None

    def resume(self) -> None:
        self.connect().addErrback(_say)

    def heard(self, alive: bool) -> None:
        """The server acknowledges KEEPALIVEs, or has not for 5 s."""
        self._alive = alive

    def shortfall(self, complete: bool) -> str:
        """Return the ranges that are missing.

        UDP does not tell a record that is not kept any more from an answer that was lost.
        """
        ranges = [*self.given_up]
        client = self._client
        if client is not None and not complete:
            ranges += client.missing
        said = []
        if ranges:
            named = ", ".join(f"{first} to {last}" for first, last in ranges[:MOST_NAMED])
            more = f" and {len(ranges) - MOST_NAMED} more ranges" if len(ranges) > MOST_NAMED else ""
            said.append(f"nobody sent {named}{more}, because they are not kept any more or the answers were lost")
        if client is not None and not complete and not self._alive:
            position = self.after if client.position is None else client.position
            behind = "everything" if position is None else f"everything behind {position}"
            said.append(f"the server has not answered for 5 s, so {behind} may be missing")
        return "; ".join(said)

    def close(self) -> Deferred[None]:
        client, self._client = self._client, None
        closed: Deferred[None] = Deferred()
        if client is not None:
            return client.close()
        closed.callback(None)
        return closed


def _say(failure: Failure) -> None:
    if not failure.check(Closed):
        log.error("{why}", why=failure.getErrorMessage())


def _only(stream: str | None) -> None:
    if stream is not None:
        raise ConfigError("the backbone has one stream, which its server names; leave --stream out")
