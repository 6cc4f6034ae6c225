"""``fyrehose journal serve``: listen until somebody ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.error import CannotListenError

from fyrehose.errors import FyrehoseError
from fyrehose.journal.serve import site
from fyrehose.journal.view import look


async def serve(reactor: Any, directory: Path, place: str) -> int:
    """Serve ``directory`` at ``place`` (``HOST:PORT``) until this is cancelled; then 0.

    :raises FyrehoseError: there is no journal, or the port is taken
    """
    empty = not look(directory).segments
    host, _, port = place.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise FyrehoseError(f"{place!r} should be HOST:PORT, such as 127.0.0.1:8120")
    try:
        listening = reactor.listenTCP(int(port), site(directory), interface=host)
    except CannotListenError as error:
        raise FyrehoseError(f"{place} cannot be listened on: {error.socketError}") from error
    address = listening.getHost()
    shown = f"[{address.host}]" if ":" in address.host else address.host
    click.echo(f"serving {directory} at http://{shown}:{address.port}")
    if empty:
        click.echo(f"fyrehose: there is nothing in {directory} yet; is it the server's --data-dir?", err=True)
    try:
        await Deferred()
    except CancelledError:
        await maybeDeferred(listening.stopListening)
    return 0
