"""A network whose TLS handshakes fail waits before its next ones; honest clients of it get through."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.holding import FORGOTTEN, LONGEST, MOST_OF_ONE, DelayedConnection, RefusedConnection
from fyrehose.net.tls import TLSFactory, TLSSettings
from fyrehose.testing import MemoryJournal
from fyrehose.testing.certificates import Authority

from .test_tcp import ToyFactory
from .test_tls import TLSClient, client

ATTACKER, OTHER = "10.0.0.1", "10.0.0.2"
#: As long as nothing happens, the clock of a test moves by so many seconds.
STEP = 0.05


@implementer(IOpenSSLContextFactory)
@attrs.frozen
class OfEndpoint:
    """Makes connections with *context* as endpoint strings do it."""

    context: Any

    def getContext(self) -> Any:
        return self.context


class World:
    """A server that asks for certificates, and its clock."""

    def __init__(self, authority: Authority, of_twisted: bool = False, **settings: Any) -> None:
        """:param of_twisted: TLS as Twisted's ``ssl:`` endpoints have it, around the server"""
        own = authority.issue("server", "localhost")
        chosen = TLSSettings(
            tls_certificate=own.certificate,
            tls_key=own.key,
            tls_authorities=authority.certificate,
            tls_client_auth="required",
            **settings,
        )
        self.clock = Clock()
        self.broker = Broker(self.clock, MemoryJournal(), Sequencer())
        self.broker.counters.seconds = self.clock.seconds
        self.broker.open()
        self.inner = ToyFactory(self.broker, chosen, self.clock)
        tls = chosen.tls("toy")
        assert tls is not None
        around = TLSMemoryBIOFactory(OfEndpoint(tls.files.context), False, self.inner, self.clock)
        self.outer = around if of_twisted else TLSFactory(tls, self.inner, self.clock)

    def connect(
        self, context: ssl.SSLContext, host: str = ATTACKER, session: ssl.SSLSession | None = None
    ) -> TLSClient:
        """Connect from *host*; the server must not close the connection at once."""
        client = self.try_to_connect(context, host, session)
        assert client is not None, "the server has closed the connection at once"
        return client

    def try_to_connect(
        self, context: ssl.SSLContext, host: str = ATTACKER, session: ssl.SSLSession | None = None
    ) -> TLSClient | None:
        """Connect from *host*; None: the server has closed the connection at once."""
        return TLSClient.connect(self.clock, self.outer, context, host, session=session)

    def fail(self, context: ssl.SSLContext, seconds: float = 5.0, host: str = ATTACKER, most: int = 200) -> int:
        """Connect without a pause for *seconds*; return how many connections there were, *most* at the most."""
        end, count = self.clock.seconds() + seconds, 0
        while self.clock.seconds() < end and count < most:
            count += 1
            self.finish(self.try_to_connect(context, host))
        return count

    def finish(self, client: TLSClient | None) -> float:
        """Go on until the client is closed or has an answer; return how long that took."""
        began = self.clock.seconds()
        while client is not None and not client.closed and not client.heard:
            before = (client.heard, client.ready, client.received.pending, client.to_send.pending)
            client.step()
            if before == (client.heard, client.ready, client.received.pending, client.to_send.pending):
                self.clock.advance(STEP)
        return self.clock.seconds() - began

    def count(self, what: str) -> int:
        return self.broker.counters.counts["toy", what]


def test_a_client_whose_handshakes_fail_is_slowed_down(authority: Authority) -> None:
    world = World(authority)
    assert world.fail(client(authority)) <= 8
    assert world.count("handshake-failed") <= 8


def test_each_cause_of_a_failed_handshake_is_logged(authority: Authority, log_lines: list[str], tmp_path: Path) -> None:
    world = World(authority)
    stranger = Authority(tmp_path, "stranger").issue("writer")
    unknown = client(authority)
    unknown.load_cert_chain(stranger.certificate, stranger.key)
    for _ in range(3):
        world.fail(client(authority), most=1)
        world.fail(unknown, most=1)
    assert len(log_lines) == 2
    assert log_lines[0] == "toy: handshake-failed from 10.0.0.1: peer did not return a certificate"
    assert log_lines[1].startswith("toy: handshake-failed from 10.0.0.1: certificate verify failed")


@pytest.mark.parametrize("of_twisted", [False, True])
def test_an_honest_client_behind_the_same_address_is_delayed_and_then_served(
    authority: Authority, of_twisted: bool
) -> None:
    world = World(authority, of_twisted)
    world.fail(client(authority), 20.0)
    world.connect(client(authority))
    honest = world.connect(client(authority, "writer"))
    assert 0 < world.finish(honest) <= LONGEST + 1
    assert honest.heard == b"ok hello\n"


def test_failed_handshakes_do_not_delay_other_networks(authority: Authority) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    honest = world.connect(client(authority, "writer"), OTHER)
    assert world.finish(honest) <= STEP
    assert honest.heard == b"ok hello\n"


def test_connections_closed_before_their_handshake_delay_no_others(authority: Authority) -> None:
    world = World(authority)
    for _ in range(100):
        probe = world.connect(client(authority))
        probe.leave()
    assert world.count("handshake-aborted") == 100
    honest = world.connect(client(authority, "writer"))
    assert world.finish(honest) <= STEP
    assert honest.heard == b"ok hello\n"


def test_failed_handshakes_are_forgotten_after_a_while(authority: Authority) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    world.clock.advance(FORGOTTEN)
    assert world.finish(world.connect(client(authority, "writer"))) <= STEP


def test_without_a_refusal_delay_no_connection_is_delayed(authority: Authority) -> None:
    world = World(authority, refusal_delay=0.0)
    assert world.fail(client(authority)) == 200
    assert world.count("handshakes-delayed") == 0


def test_a_delayed_connection_is_not_read_and_makes_no_tls_object(authority: Authority) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    before = world.count("connections")
    waiting = world.connect(client(authority, "writer"))
    waiting.step()
    assert isinstance(waiting.protocol, DelayedConnection)
    assert (waiting.transport.reads, world.count("connections")) == (False, before)
    world.clock.advance(LONGEST)
    assert isinstance(waiting.protocol, TLSMemoryBIOProtocol)
    assert (waiting.transport.reads, world.count("connections")) == (True, before + 1)


def test_a_delayed_connection_is_served_with_the_files_of_a_reload_meanwhile(
    authority: Authority, tmp_path: Path
) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    other = Authority(tmp_path, "other")
    own = other.issue("server", "localhost")
    waiting = [world.connect(client(each, "writer")) for each in (authority, other)]
    settings = attrs.evolve(
        world.inner.settings,
        tls_certificate=own.certificate,
        tls_key=own.key,
        tls_authorities=other.certificate,
    )
    prepared = world.outer.tls.prepare(settings)
    world.inner.configure(settings)
    prepared.apply()
    heard = []
    for each in waiting:
        world.finish(each)
        heard.append(each.heard)
    assert heard == [b"", b"ok hello\n"], "only the second client trusts the new certificate"


@pytest.mark.parametrize("waiting", [MOST_OF_ONE - 1, MOST_OF_ONE])
def test_the_delayed_connections_of_one_network_are_limited(authority: Authority, waiting: int) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    context = client(authority, "writer")
    peers = [world.connect(context) for _ in range(waiting)]
    last = world.try_to_connect(context)
    assert (last is None) == (waiting == MOST_OF_ONE)
    assert world.count("too-many-handshakes") == (last is None)
    assert world.try_to_connect(context, OTHER) is not None, "another network has not failed"
    for peer in peers:
        world.finish(peer)
        assert peer.heard == b"ok hello\n", "those that wait are served"


def test_a_delayed_connection_may_be_refused_by_the_limits_after_its_delay(authority: Authority) -> None:
    world = World(authority, max_per_host=1)
    world.fail(client(authority), 5.0)
    context = client(authority, "writer")
    first, second = world.connect(context), world.connect(context)
    world.finish(first)
    assert first.heard == b"ok hello\n"
    assert isinstance(second.protocol, RefusedConnection)
    assert not second.transport.reads


def test_stopping_closes_delayed_connections(authority: Authority) -> None:
    world = World(authority)
    world.fail(client(authority), 5.0)
    waiting = world.connect(client(authority, "writer"))
    drained: list[None] = []
    world.inner.drain().addCallback(drained.append)
    assert waiting.closed
    assert not drained
    waiting.leave()
    assert drained == [None]
    assert not [call for call in world.clock.getDelayedCalls() if call.active()]
