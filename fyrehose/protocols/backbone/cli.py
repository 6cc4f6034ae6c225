"""Connect ``fyrehose publish`` and ``fyrehose tail`` to a backbone."""

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

#: Upper bound of the ranges that an error message lists.
MOST_NAMED = 10
#: How often an unconfirmed PUSH is repeated; a message whose DELIVER was lost is then published twice.
RETRIES = 5


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> BackboneClient:
    """Return a client that publishes to the server's stream.

    :raises ConfigError: *stream* is given; a backbone has only one stream
    """
    _refuse_stream(stream)
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
    """Return a subscriber that requests missing records.

    :raises ConfigError: *stream* is given; a backbone has only one stream
    """
    _refuse_stream(stream)

    def gap(first: int, last: int) -> None:
        created.given_up = [*created.given_up[-MOST_NAMED:], (first, last)]
        lost(first, last)

    created = BackboneTailer(
        lambda after: _client(
            reactor, host, port, Options(after=after), on_records=take, on_gap=gap, on_alive=created.set_alive
        ),
        after,
    )
    return created


def _client(reactor: Any, host: str, port: int, options: Options, **callbacks: Any) -> BackboneClient:
    """Return a client that waits for its server, as the clients of other protocols do; the commands time out."""
    return BackboneClient(reactor, host, port, options=options, persistent=True, **callbacks)


@implementer(ITailer)
@attrs.define(eq=False)
class BackboneTailer:
    """A subscriber that can pause: it closes its client, and resumes with a new one that requests what it missed.

    :ivar make: makes a client that starts after a sequence
    :ivar after: the sequence to start after
    :ivar given_up: the last MOST_NAMED ranges that no client or server sent
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
        self.connect().addErrback(_log_failure)

    def set_alive(self, alive: bool) -> None:
        """Record whether the server acknowledges KEEPALIVEs, or has not done so for 5 s."""
        self._alive = alive

    def shortfall(self, complete: bool) -> str:
        """Describe the records that are missing; empty if there are none.

        With UDP, a record that is no longer kept cannot be distinguished from a lost answer.

        :param complete: whether the command received all records that it waited for
        """
        ranges = [*self.given_up]
        client = self._client
        if client is not None and not complete:
            ranges += client.missing
        reasons = []
        if ranges:
            named = ", ".join(f"{first} to {last}" for first, last in ranges[:MOST_NAMED])
            more = f" and {len(ranges) - MOST_NAMED} more ranges" if len(ranges) > MOST_NAMED else ""
            reasons.append(f"records {named}{more} did not arrive: no longer kept, or the answers were lost")
        if client is not None and not complete and not self._alive:
            position = self.after if client.position is None else client.position
            missing = "all records" if position is None else f"the records after {position}"
            reasons.append(f"the server has not answered for 5 s: {missing} may be missing")
        return "; ".join(reasons)

    def close(self) -> Deferred[None]:
        client, self._client = self._client, None
        closed: Deferred[None] = Deferred()
        if client is not None:
            return client.close()
        closed.callback(None)
        return closed


def _log_failure(failure: Failure) -> None:
    if not failure.check(Closed):
        log.error("{why}", why=failure.getErrorMessage())


def _refuse_stream(stream: str | None) -> None:
    if stream is not None:
        raise ConfigError(f"unexpected --stream {stream!r}: a backbone has one stream; omit the option")
