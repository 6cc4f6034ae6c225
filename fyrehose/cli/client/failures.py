"""Decide which failures of a connection end a command, and say what to do about them.

    client -> FinalFailures(error) -> None: the client tries again; an error: the command ends with it

A command that has never reached its server ends at once if nothing listens there, if the name has no address, or if the
server is one of another protocol.  A server that refuses a client closes its connections, without a reason in most
protocols, so a few connections in a row that are closed at once end the command, too.  Once the server has answered, or
a connection has lasted, the client goes on: a server may be restarted.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.error import (
    ConnectionDone,
    ConnectionLost,
    DNSLookupError,
    NoRouteError,
    UnknownHostError,
)
from twisted.internet.error import ConnectionRefusedError as NobodyListens
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError
from fyrehose.net import holding
from fyrehose.net.clients import ConnectionFailed, TlsFailed, Unreachable, WrongProtocol

log = Logger()

#: A connection that ends within SHORT seconds counts as closed at once, which is longer than a server holds connections
#: that it refuses; TIMES such connections in a row count as a refusal.
SHORT, TIMES = 2 * holding.LONGEST, 3
#: The reasons why an attempt to connect fails that do not pass by themselves within ``--timeout``.
_NOBODY = (NobodyListens, NoRouteError, UnknownHostError, DNSLookupError, Unreachable)
#: Why a server refuses streams whose names begin with a dot.
_OWN = "streams whose names begin with a dot belong to the server; use another name"


@attrs.define(eq=False)
class FinalFailures:
    """The ``process_exception`` of a command's client.

    :ivar name: the server's name in messages, such as ``figg at 127.0.0.1:8119``
    :ivar wanted: the action of this command, such as ``read 'notes'``
    :ivar servers_own: whether the stream's name begins with a dot: the server keeps such streams to itself
    :ivar encrypted: whether the connections use TLS
    :ivar times: how many connections in a row, each closed at once, count as a refusal
    :ivar final: the error that ends the command
    """

    name: str
    wanted: str = "do this"
    servers_own: bool = False
    encrypted: bool = False
    times: int = TIMES
    final: FyrehoseError | None = attrs.field(default=None, init=False)
    _on_final: Callable[[], object] = attrs.field(default=lambda: None, init=False)
    _short: int = attrs.field(default=0, init=False)
    _reached: bool = attrs.field(default=False, init=False)

    def __str__(self) -> str:
        return self.name

    def __call__(self, error: Exception) -> Exception | None:
        if self.final is None and isinstance(error, ConnectionFailed):
            text = self._text(error)
            if text:
                self.final = FyrehoseError(text)
                self._on_final()
        return self.final

    def watch(self, on_final: Callable[[], object]) -> None:
        """Call ``on_final``, in place of an earlier callback, as soon as an error is final."""
        self._on_final = on_final
        if self.final is not None:
            on_final()

    def hint(self, problem: str) -> str:
        """Return as text what to check.

        :param problem: the client's reason why the server does not answer; "" if the connection is open
        """
        if self.servers_own:
            return _OWN
        if not problem:
            return (
                "the connection is open: the disk of the server may be full (see its log, or `fyrehose doctor` there), "
                f"or that is no port of protocol {self._protocol}"
            )
        what = problem.partition("; ")[0]  # without advice of its own
        return f"{what}; is the server running and reachable, and does its access policy allow this client?"

    @property
    def _protocol(self) -> str:
        return self.name.partition(" at ")[0]

    def _text(self, error: ConnectionFailed) -> str:
        """Return the text of the final error that *error* is, or "" if the client tries again."""
        if error.confirmed or (error.seconds or 0.0) >= SHORT:
            self._short, self._reached = 0, True
            return ""
        if error.seconds is not None:
            self._short += 1
        if self._reached:
            if self._short == self.times:
                log.warn("{name} closes each connection at once; see its log; retrying", name=self)
            return ""
        return self._final(error)

    def _final(self, error: ConnectionFailed) -> str:
        reason = error.reason
        if isinstance(reason, WrongProtocol):
            advice = "pass --tls" if "requires TLS" in str(reason) else "check the port and --protocol"
            return f"{self}: {str(reason).removesuffix('; check the port')}; {advice}"
        if isinstance(reason, TlsFailed):
            return f"TLS handshake with {self} failed: {reason.text}; see --tls"
        if isinstance(reason, _NOBODY):
            return (
                f"cannot connect to {self}: {error}; is the server running there, with "
                f"--listen {self._protocol}=ENDPOINT? `twistd --nodaemon fyrehose` starts one on this machine"
            )
        if isinstance(reason, ConnectionDone | ConnectionLost) and self._short >= self.times:
            return self._refused(error.address or "this client")
        return ""

    def _refused(self, client: str) -> str:
        if self.servers_own:
            return f"{self} does not let this client {self.wanted}: {_OWN}"
        tls = "speak TLS" if self.encrypted else "require TLS (--tls)"
        return (
            f"{self} closes each connection at once: is that a port of protocol {self._protocol}, and does it {tls}? "
            f"See its log: its access policy may not allow {client} to {self.wanted}, or its "
            "max-connections is reached"
        )
