"""TLS by options: which clients are accepted, and which files are refused."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.net.holding import Holding, RefusedConnection
from fyrehose.net.peers import identify
from fyrehose.net.tls import TLS, EndpointReactor, TLSFactory, TLSSettings, add_tls
from fyrehose.net.turns import INPUT_S
from fyrehose.options import build
from fyrehose.protocols.figg.frames import Publish
from fyrehose.protocols.figg.server import FiggFactory
from fyrehose.testing import MemoryJournal, Transport
from fyrehose.testing.certificates import Authority


def options(authority: Authority, **more: Any) -> TLSSettings:
    own = authority.issue("server", "localhost", "127.0.0.1")
    return TLSSettings(**{"tls_certificate": own.certificate, "tls_key": own.key, **more})


class Echo(Protocol):
    """Answers what it was told, and remembers who said it."""

    who: str | None = None

    def dataReceived(self, data: bytes) -> None:
        self.who = identify(self.transport).name
        self.transport.write(data)  # type: ignore[union-attr]


@attrs.define(eq=False)
class TLSClient:
    """A client that connects, says something and reads."""

    clock: Clock
    transport: Any
    tls: ssl.SSLObject
    received: ssl.MemoryBIO
    to_send: ssl.MemoryBIO
    says: bytes
    heard: bytes = b""
    ready: bool = False
    left: bool = False
    error: ssl.SSLError | None = None

    @classmethod
    def connect(
        cls,
        clock: Clock,
        factory: Any,
        context: ssl.SSLContext,
        host: str = "10.0.0.1",
        says: bytes = b"hello\n",
        session: ssl.SSLSession | None = None,
    ) -> TLSClient | None:
        """Connect to *factory*; return None if the server has closed the connection at once."""
        address = IPv4Address("TCP", host, 5000)
        protocol = factory.buildProtocol(address)
        if protocol is None:
            return None
        transport: Any = Transport(peerAddress=address)  # type: ignore[no-untyped-call]
        transport.protocol = protocol
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, to_send, server_hostname="localhost", session=session)
        protocol.makeConnection(transport)
        return cls(clock, transport, tls, received, to_send, says)

    @property
    def protocol(self) -> Any:
        """Return the protocol that the transport belongs to at present."""
        return self.transport.protocol

    @property
    def closed(self) -> bool:
        return bool(self.transport.disconnecting)

    def step(self) -> None:
        """Exchange what there is to exchange."""
        try:
            if not self.ready:
                self.tls.do_handshake()
                self.tls.write(self.says)
                self.ready = True
            self.heard += self.tls.read(100)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.error = error
            self.leave()
            return
        if self.transport.reads and self.to_send.pending:
            self.protocol.dataReceived(self.to_send.read())
        self.clock.advance(0)
        self.received.write(self.transport.value())
        self.transport.clear()
        if self.closed:
            self.leave()

    def leave(self) -> None:
        """Close the connection, after sending what is left, such as an alert."""
        if self.left:
            return
        self.left = True
        if self.to_send.pending and self.transport.reads:
            self.protocol.dataReceived(self.to_send.read())
        self.transport.disconnecting = True
        self.protocol.connectionLost(Failure(ConnectionDone()))


@attrs.define
class Met:
    """The result of a connection: the inner protocol, the answer, and the error of the client."""

    inside: Echo
    answer: bytes
    error: ssl.SSLError | None


def meet(settings: TLSSettings, client: ssl.SSLContext) -> Met:
    """Return a client at a server with *settings*, without sockets."""
    tls = settings.tls("toy")
    assert tls is not None
    return meet_server(tls, client)


def meet_server(tls: TLS, client: ssl.SSLContext) -> Met:
    clock = Clock()
    return meet_factory(TLSFactory(tls, Factory.forProtocol(Echo), clock), client, clock)


def meet_factory(around: TLSFactory, client: ssl.SSLContext, clock: Clock) -> Met:
    peer = TLSClient.connect(clock, around, client, says=b"hello")
    assert peer is not None
    inside = peer.protocol.wrappedProtocol
    for _ in range(10):
        if peer.error is None:
            peer.step()
    return Met(inside, peer.heard, peer.error)


def client(authority: Authority, name: str | None = None, *others: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if name is not None or others:
        own = authority.issue(name, *others)
        context.load_cert_chain(own.certificate, own.key)
    return context


def test_without_a_certificate_tls_is_off() -> None:
    assert TLSSettings().tls("toy") is None


def test_a_client_that_trusts_the_authority_is_answered(authority: Authority) -> None:
    met = meet(options(authority), client(authority))
    assert (met.answer, met.error, met.inside.who) == (b"hello", None, None)


@pytest.mark.parametrize(
    ("auth", "certificate", "welcome"),
    [
        ("optional", False, True),
        ("optional", True, True),
        ("required", False, False),
        ("required", True, True),
    ],
)
def test_client_certificates_are_checked_as_configured(
    authority: Authority, auth: str, certificate: bool, welcome: bool
) -> None:
    settings = options(authority, tls_client_auth=auth, tls_authorities=authority.certificate)
    met = meet(settings, client(authority, "writer-7" if certificate else None))
    assert (met.answer == b"hello") == welcome
    assert (met.error is None) == welcome
    assert met.inside.who == ("writer-7" if certificate else None)


@pytest.mark.parametrize("auth", ["optional", "required"])
def test_a_certificate_of_an_unknown_authority_is_refused(authority: Authority, tmp_path: Path, auth: str) -> None:
    settings = options(authority, tls_client_auth=auth, tls_authorities=authority.certificate)
    stranger = Authority(tmp_path, "stranger").issue("writer-7")
    context = client(authority)
    context.load_cert_chain(stranger.certificate, stranger.key)
    met = meet(settings, context)
    assert (met.answer, met.inside.who) == (b"", None)
    assert met.error is not None


def test_several_authorities_may_be_in_one_file(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(other.certificate).read_bytes() + Path(authority.certificate).read_bytes())
    settings = options(authority, tls_client_auth="required", tls_authorities=str(both))
    for issuer in (authority, other):
        own = issuer.issue("writer-1")
        context = client(authority)
        context.load_cert_chain(own.certificate, own.key)
        assert meet(settings, context).inside.who == "writer-1"


def test_the_server_sends_its_chain(authority: Authority, tmp_path: Path) -> None:
    between = Authority(tmp_path, "between", authority)
    own = between.issue("server", "localhost", chain=True)
    assert meet(TLSSettings(tls_certificate=own.certificate, tls_key=own.key), client(authority)).answer == b"hello"


def test_an_ssl_endpoint_listens_where_it_says_and_sends_its_chain(authority: Authority, tmp_path: Path) -> None:
    between, reactor = Authority(tmp_path, "between", authority), MemoryReactorClock()
    own = between.issue("server", "localhost")
    files = f"privateKey={own.key}:certKey={own.certificate}:extraCertChain={between.certificate}"
    endpoint = serverFromString(EndpointReactor(reactor), f"ssl:8119:interface=127.0.0.1:backlog=7:{files}")
    endpoint.listen(Factory.forProtocol(Echo))
    ((port, around, backlog, interface),) = reactor.tcpServers
    assert (port, backlog, interface) == (8119, 7, "127.0.0.1")
    assert meet_factory(around, client(authority), reactor).answer == b"hello"


def test_a_client_is_told_which_authorities_may_issue_its_certificate(authority: Authority) -> None:
    tls = options(authority, tls_client_auth="required", tls_authorities=authority.certificate).tls("toy")
    assert tls is not None
    server, peer = SSL.Connection(tls.files.context, None), SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    server.set_accept_state()
    peer.set_connect_state()
    for ours, theirs in ((peer, server), (server, peer)):
        with suppress(SSL.WantReadError):
            ours.do_handshake()
        theirs.bio_write(ours.bio_read(1 << 16))
    with suppress(SSL.WantReadError):
        peer.do_handshake()
    own = load_pem_x509_certificate(Path(authority.certificate).read_bytes())
    assert [name.CN for name in peer.get_client_ca_list()] == [
        own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    ]


def test_an_encrypted_key_is_read_with_its_passphrase(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("server", "localhost", passphrase="open sesame")
    file = tmp_path / "passphrase"
    file.write_text("open sesame\nnot this\n")
    settings = TLSSettings(tls_certificate=own.certificate, tls_key=own.key, tls_key_passphrase=str(file))
    assert meet(settings, client(authority)).answer == b"hello"
    for wrong in ("", str(Path(own.certificate))):
        with pytest.raises(ConfigError, match=r"invalid TLS options of toy: .*server\.key"):
            attrs.evolve(settings, tls_key_passphrase=wrong).tls("toy")


def test_the_key_may_be_in_the_same_file(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("server", "localhost")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    assert meet(TLSSettings(tls_certificate=str(both)), client(authority)).answer == b"hello"


def test_tls_1_2_is_the_lowest_version_unless_the_option_raises_it(authority: Authority) -> None:
    old = client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert meet(options(authority), old).answer == b"hello"
    assert meet(options(authority, tls_minimum="1.3"), old).error is not None
    assert meet(options(authority, tls_minimum="1.3"), client(authority)).answer == b"hello"


def test_only_ciphers_with_forward_secrecy_and_authentication_are_accepted(authority: Authority) -> None:
    old = client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    assert meet(options(authority), old).answer == b"hello"
    old.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    assert meet(options(authority), old).error is not None


def test_alternative_names_are_identities(authority: Authority) -> None:
    settings = options(authority, tls_client_auth="required", tls_authorities=authority.certificate)
    assert meet(settings, client(authority, None, "beat.example", "10.0.0.9")).inside.who == "beat.example"
    assert meet(settings, client(authority, "x" * 64)).inside.who == "x" * 64


def test_reloaded_certificates_apply_to_new_connections(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "server.pem"

    def use(own: Any) -> None:
        path.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())

    use(authority.issue("server", "localhost"))
    factory = Factory()
    factory.buildProtocol = lambda addr: Echo()  # type: ignore[method-assign]
    listening = add_tls("toy", "tcp:1", factory, TLSSettings(tls_certificate=str(path)), Clock())
    assert listening is not None
    before = listening.tls.files.context
    other = Authority(tmp_path, "other")
    use(other.issue("server", "localhost"))
    listening.tls.prepare(listening.tls.settings).apply()
    assert listening.tls.files.context is not before
    trusting = ssl.create_default_context(cafile=other.certificate)
    assert meet(listening.tls.settings, trusting).answer == b"hello"
    good = listening.tls.files.context
    for content in ("", "nonsense"):
        path.write_text(content)
        with pytest.raises(ConfigError, match="invalid TLS options of toy"):
            listening.tls.prepare(listening.tls.settings).apply()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        listening.tls.prepare(listening.tls.settings).apply()
    assert listening.tls.files.context is good


def test_applying_a_reload_reads_no_file_again(authority: Authority, tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("certificate", "key", "authorities")}
    own, other = authority.issue("server", "localhost"), Authority(tmp_path, "other").issue("server", "localhost")
    paths["authorities"].write_bytes(Path(authority.certificate).read_bytes())

    def use(issued: Any) -> None:
        paths["certificate"].write_bytes(Path(issued.certificate).read_bytes())
        paths["key"].write_bytes(Path(issued.key).read_bytes())

    use(other)
    settings = TLSSettings(
        tls_certificate=str(paths["certificate"]),
        tls_key=str(paths["key"]),
        tls_authorities=str(paths["authorities"]),
        tls_client_auth="required",
    )
    tls = settings.tls("toy")
    assert tls is not None
    use(own)
    prepared = tls.prepare(settings)
    assert {name for name in prepared.contents if prepared.contents[name] != tls.files.contents[name]} == {
        "tls_certificate",
        "tls_key",
    }
    for path in paths.values():
        path.unlink()
    prepared.apply()
    assert tls.files.contents == prepared.contents
    assert meet_server(tls, client(authority, "beat")).answer == b"hello"


class SmallRecords:
    """A Figg client behind TLS, which sends each byte in a record of its own, and a server."""

    def __init__(self, settings: TLSSettings, authority: Authority) -> None:
        self.clock = Clock()
        self.broker = broker = Broker(self.clock, MemoryJournal(auto=True), Sequencer())
        broker.open()
        tls = settings.tls("figg")
        assert tls is not None
        factory = TLSFactory(tls, FiggFactory(broker, reactor=self.clock), self.clock)
        peer = TLSClient.connect(self.clock, factory, client(authority), "127.0.0.1", says=b"")
        assert peer is not None
        for _ in range(3):
            peer.step()
        self.server, self.transport = peer.protocol, peer.transport
        self.client, self.received, self.to_send = peer.tls, peer.received, peer.to_send

    def send(self) -> None:
        """Hand everything that the client has written to the server, by one read, and the answers to the client."""
        data = self.to_send.read()
        if data:
            self.server.dataReceived(data)
        self.received.write(self.transport.value())
        self.transport.clear()

    def write(self, data: bytes) -> None:
        for at in range(len(data)):
            self.client.write(data[at : at + 1])
        self.send()

    @property
    def stored(self) -> int:
        """Return how many messages were stored."""
        return self.broker.bounds("t")[1]


@pytest.fixture
def small(authority: Authority) -> SmallRecords:
    """Return a client whose input is not handled as it arrives, because another network has used the time for that."""
    peer = SmallRecords(options(authority), authority)
    peer.broker.turns.charge("<another", INPUT_S)
    return peer


FRAMES = [Publish(topic="t", number=number, data=b"%d" % number).serialize() for number in range(1, 201)]


def test_small_records_are_decrypted_in_turns_after_the_time_for_input_is_over(small: SmallRecords) -> None:
    small.write(b"".join(FRAMES))
    assert (small.transport.producerState, small.stored) == ("paused", 0)
    assert small.broker.budget.used == 0, "what was received and decrypted is charged"
    small.clock.advance(1)
    assert small.stored == len(FRAMES)
    assert small.transport.producerState == "producing"


def test_every_small_record_arrives_once_and_in_order(small: SmallRecords) -> None:
    for frame in FRAMES:
        small.write(frame)
    for _ in FRAMES:
        small.clock.advance(1)
    runs = small.broker.read("t", 1, 1 << 20)
    assert [payload for run in runs for payload in run.payloads()] == [b"%d" % number for number in range(1, 201)]


@pytest.mark.parametrize("ends", [("TLS",), ("TCP",), ("TLS", "TCP")])
def test_end_of_the_data_is_handled_after_the_records_before_it(small: SmallRecords, ends: tuple[str, ...]) -> None:
    for byte in b"".join(FRAMES):
        small.client.write(bytes((byte,)))
    with suppress(ssl.SSLWantReadError):
        if "TLS" in ends:
            small.client.unwrap()
    small.send()
    if "TCP" in ends:
        small.server.readConnectionLost()
    assert not small.transport.disconnecting, "records wait for their turn"
    small.clock.advance(1)
    assert small.stored == len(FRAMES)
    assert small.transport.disconnecting


def test_nothing_is_decrypted_for_a_connection_that_was_lost_before_its_turn(small: SmallRecords) -> None:
    small.write(b"".join(FRAMES))
    small.server.connectionLost(Failure(ConnectionLost()))
    small.clock.advance(1)
    assert small.stored == 0


def test_tls_is_added_only_to_plain_endpoints(authority: Authority) -> None:
    assert add_tls("toy", "tcp:1", Factory(), TLSSettings(), Clock()) is None
    for endpoint in ("ssl:1:privateKey=x", "tls:1"):
        with pytest.raises(ConfigError, match=r"uses TLS already; use toy\.tls-certificate with tcp:"):
            add_tls("toy", endpoint, Factory(), options(authority), Clock())


def test_a_factory_behind_tls_may_refuse_a_connection(authority: Authority) -> None:
    factory = Factory()
    factory.buildProtocol = lambda addr: None  # type: ignore[method-assign]
    assert TLSFactory(options(authority).tls("toy"), factory, Clock()).buildProtocol(None) is None  # type: ignore[arg-type]


def test_a_refused_connection_gets_no_handshake(authority: Authority) -> None:
    clock, factory = Clock(), Factory()
    refused = RefusedConnection(Holding(clock), "10.0.0.1", 1.0, 10)
    factory.buildProtocol = lambda addr: refused  # type: ignore[method-assign,assignment]
    assert TLSFactory(options(authority).tls("toy"), factory, clock).buildProtocol(None) is refused  # type: ignore[arg-type]


def test_contradicting_options_are_refused(authority: Authority) -> None:
    together = "tls-authorities and tls-client-auth=optional or required can only be set together"
    for wrong, said in (
        (TLSSettings(tls_key="key"), "TLS requires toy.tls-certificate"),
        (TLSSettings(tls_client_auth="required", tls_authorities="x"), "TLS requires toy.tls-certificate"),
        (TLSSettings(tls_certificate=str(authority.certificate)), "; add the key to it, or set toy.tls-key"),
        (options(authority, tls_client_auth="required"), together),
        (options(authority, tls_authorities=authority.certificate), together),
        (options(authority, tls_certificate="nowhere.pem"), "cannot read toy.tls-certificate nowhere.pem: No such"),
        (options(authority, tls_key=authority.issue("other").key), "its key is not that of the certificate in "),
        (options(authority, tls_certificate=__file__), "test_tls.py: it has no complete certificate in PEM form"),
        (options(authority, tls_key=authority.certificate), "authority.pem: it has no complete private key in PEM fo"),
        (options(authority, tls_client_auth="required", tls_authorities=__file__), "cannot use toy.tls-authorities"),
    ):
        with pytest.raises(ConfigError, match="toy") as raised:
            wrong.tls("toy")
        assert said in str(raised.value)


def test_tls_options_are_converted_from_text() -> None:
    assert build(TLSSettings, "toy", {"tls-minimum": "1.3"}).tls_minimum == "1.3"
    for wrong in ({"tls-minimum": "1.1"}, {"tls-client-auth": "perhaps"}):
        with pytest.raises(ConfigError, match=r"expected .* or "):
            build(TLSSettings, "toy", wrong)
