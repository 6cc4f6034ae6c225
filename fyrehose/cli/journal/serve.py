"""``fyrehose journal serve``: serve a journal's files over HTTP until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.error import CannotListenError

from fyrehose.errors import ConfigError, FyrehoseError, os_reason
from fyrehose.net.several import place_text
from fyrehose.offline.serve import ServeFactory
from fyrehose.offline.view import look
from fyrehose.web.hosts import hosts_of, is_local
from fyrehose.web.tokens import read_token


async def serve(reactor: Any, directory: Path, place: str, token_file: str = "", names: tuple[str, ...] = ()) -> int:
    """Serve the journal in ``directory`` at ``place`` (``HOST:PORT``) until the call is cancelled.

    :param token_file: the file with the token that every request must carry
    :param names: host names that requests may use, besides localhost on loopback
    :return: the exit status, 0
    :raises FyrehoseError: the directory has no journal, the port is in use, or a public address has no token
    """
    view = look(directory)
    host, _, port = place.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise FyrehoseError(f"invalid --listen {place!r}: expected HOST:PORT, such as 127.0.0.1:8120")
    endpoint = f"tcp:{port}:interface={host.replace(':', chr(92) + ':')}"
    token = read_token(token_file, "--token-file")
    if token is None and not is_local(endpoint):
        raise ConfigError(
            f"refusing to serve the journal at the public address {place} without a token; pass --token-file FILE, "
            "or listen on loopback, such as 127.0.0.1:8120"
        )
    try:
        factory = ServeFactory(directory, hosts_of(endpoint, names), token, reactor)
        listening = reactor.listenTCP(int(port), factory, interface=host)
    except CannotListenError as error:
        reason = os_reason(error.socketError)
        raise FyrehoseError(f"cannot listen on {place}: {reason}; choose another --listen") from error
    address = listening.getHost()
    click.echo(f"serving {directory} at http://{place_text(address.host, address.port)}")
    if doubt := view.doubt(directory):
        click.echo(f"fyrehose: {doubt}", err=True)
    if not view.segments:
        click.echo(f"fyrehose: {directory} has no segments yet; is it the server's --data-dir?", err=True)
    try:
        await Deferred()
    except CancelledError:
        await maybeDeferred(listening.stopListening)
    return 0
