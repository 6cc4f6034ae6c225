"""Which failures of a connection end a command, and what is said of them."""

from __future__ import annotations

import pytest
from OpenSSL import SSL
from twisted.internet.error import (
    ConnectError,
    ConnectionDone,
    ConnectionLost,
    DNSLookupError,
    NoRouteError,
    TCPTimedOutError,
)
from twisted.internet.error import ConnectionRefusedError as NobodyListens
from twisted.internet.task import Clock

from fyrehose.cli.client.failures import SHORT, FinalFailures
from fyrehose.errors import FyrehoseError, RemoteProtocolError
from fyrehose.net.clients import (
    ConnectionFailed,
    ServerSilent,
    Unreachable,
    WrongProtocol,
)
from fyrehose.net.holding import Delays


def ended(seconds: float = 0.1, reason: Exception | None = None, confirmed: bool = False) -> ConnectionFailed:
    return ConnectionFailed(reason or ConnectionDone(), seconds, confirmed, "10.0.0.1")


def failures(**options: object) -> FinalFailures:
    return FinalFailures("figg at h:1", "read 's'", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (NobodyListens(111), "Connection refused"),
        (NoRouteError(113), "No route to host"),
        (DNSLookupError(), "the host name has no address"),
        (Unreachable("no connection could be made"), "no connection could be made"),
    ],
)
def test_command_ends_at_once_where_nothing_listens(reason: Exception, text: str) -> None:
    decide, told = failures(), list[str]()
    decide.watch(lambda: told.append(str(decide.final)))
    final = decide(ConnectionFailed(reason))
    assert isinstance(final, FyrehoseError)
    assert str(final) == (
        f"cannot connect to figg at h:1: {text}; is the server running there, with --listen figg=ENDPOINT? "
        "`twistd --nodaemon fyrehose` starts one on this machine"
    )
    assert told == [str(final)]


@pytest.mark.parametrize("reason", [TCPTimedOutError(110), ConnectError(98)])
def test_command_goes_on_after_an_attempt_that_may_succeed_later(reason: Exception) -> None:
    assert failures()(ConnectionFailed(reason)) is None


@pytest.mark.parametrize("failed", [ended(SHORT), ended(0.1, confirmed=True)])
def test_command_goes_on_once_the_server_has_been_reached(failed: ConnectionFailed, log_lines: list[str]) -> None:
    decide = failures()
    assert decide(failed) is None
    assert decide(ConnectionFailed(NobodyListens(111))) is None
    assert [decide(ended(reason=WrongProtocol("x"))) for _ in range(5)] == [None] * 5
    assert log_lines == ["figg at h:1 closes each connection at once; see its log; retrying"]


@pytest.mark.parametrize("reason", [ConnectionDone(), ConnectionLost()])
def test_three_connections_closed_at_once_are_a_refusal(reason: Exception) -> None:
    decide = failures()
    assert [decide(ended(reason=reason)) for _ in range(2)] == [None, None]
    assert str(decide(ended(reason=reason))) == (
        "figg at h:1 closes each connection at once: is that a port of protocol figg, and does it require TLS (--tls)? "
        "See its log: its access policy may not allow 10.0.0.1 to read 's', or its max-connections is reached"
    )
    late: list[str] = []
    decide.watch(lambda: late.append("told"))
    assert late == ["told"]


def test_connections_that_the_server_holds_before_it_refuses_them_are_a_refusal() -> None:
    """As are those of a second command within a minute: each refusal of an address is held for longer."""
    delays, decide = Delays(Clock()), failures()
    held = [delays.count("10.0.0.1") for _ in range(9)]
    assert [decide(ended(seconds + 0.5)) is None for seconds in held[-3:]] == [True, True, False]


def test_refusal_over_tls_asks_whether_the_server_speaks_tls() -> None:
    decide = failures(encrypted=True)
    assert "does it speak TLS? See" in str([decide(ended()) for _ in range(3)][-1])


def test_refusal_of_a_reserved_stream_does_not_blame_the_network() -> None:
    decide = failures(servers_own=True)
    refused = str([decide(ended()) for _ in range(3)][-1])
    assert refused.startswith("figg at h:1 does not let this client read 's': streams whose names begin with a dot")
    assert (
        decide.hint("the connection was lost")
        == "streams whose names begin with a dot belong to the server; use another name"
    )


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            WrongProtocol("the server is an HTTP server, such as the http or the admin listener"),
            (
                "figg at h:1: the server is an HTTP server, such as the http or the admin listener; check the port and "
                "--protocol"
            ),
        ),
        (
            WrongProtocol("the server is one that requires TLS"),
            "figg at h:1: the server is one that requires TLS; pass --tls",
        ),
        (SSL.Error([("", "", "bad record mac")]), "TLS handshake with figg at h:1 failed: bad record mac; see --tls"),
    ],
)
def test_server_of_another_protocol_or_certificate_ends_the_command(reason: Exception, text: str) -> None:
    for failed in (ended(reason=reason), ConnectionFailed(reason)):
        assert str(failures()(failed)) == text


def test_errors_that_may_pass_do_not_end_the_command() -> None:
    for error in (FyrehoseError("status 503"), RemoteProtocolError("x"), ended(5, ServerSilent("x"))):
        assert failures()(error) is None


def test_hint_has_the_problem_of_the_client() -> None:
    assert failures().hint("the connection was lost") == (
        "the connection was lost; is the server running and reachable, and does its access policy allow this client?"
    )
    assert failures().hint("") == (
        "the connection is open: the disk of the server may be full (see its log, or `fyrehose doctor` there), or that "
        "is no port of protocol figg"
    )
