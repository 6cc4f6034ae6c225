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
    return BackboneTailer(
        lambda after: _client(reactor, host, port, Options(after=after), on_records=take, on_gap=lost),
        after,
    )


def _client(reactor: Any, host: str, port: int, options: Options, **told: Any) -> BackboneClient:
    """One that waits for its server, as those of other protocols do: whoever made it has patience, or none."""
    return BackboneClient(reactor, host, port, options=options, persistent=True, **told)


@implementer(ITailer)
@attrs.define(eq=False)
class BackboneTailer:
    """A subscriber that can pause.  UDP cannot, so it leaves, and comes back as one that has missed something.

    :ivar make: makes a client that begins behind a number
    :ivar after: that number
    """

    make: Callable[[int | None], BackboneClient]
    after: int | None
    _client: BackboneClient | None = None

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
