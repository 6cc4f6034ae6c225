"""Where `fyrehose journal serve` listens, and its errors; tests/offline/test_serve.py has what it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock

from fyrehose.cli.journal.serve import serve
from fyrehose.errors import ConfigError, FyrehoseError


def start(reactor: Any, directory: Path, place: str) -> tuple[Deferred[Any], list[Any]]:
    ended: list[Any] = []
    return Deferred.fromCoroutine(serve(reactor, directory, place)).addBoth(ended.append), ended


@pytest.mark.parametrize(
    ("place", "host", "port"), [("127.0.0.1:8120", "127.0.0.1", 8120), (":9", "127.0.0.1", 9), ("[::1]:7", "::1", 7)]
)
def test_server_listens_until_it_is_cancelled(
    tmp_path: Path, place: str, host: str, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    reactor = MemoryReactorClock()
    task, ended = start(reactor, tmp_path, place)
    assert [(server[0], server[3]) for server in reactor.tcpServers] == [(port, host)]
    said = capsys.readouterr()
    assert said.out.startswith(f"serving {tmp_path} at http://")
    assert said.err == f"fyrehose: {tmp_path} has no segments yet; is it the server's --data-dir?\n"
    task.cancel()
    assert ended == [0]


@pytest.mark.parametrize("place", ["0.0.0.0:8120", "10.0.0.5:8120", "[::]:8120", "everywhere:8120"])
def test_public_address_requires_a_token(tmp_path: Path, place: str) -> None:
    reactor = MemoryReactorClock()
    _, ended = start(reactor, tmp_path, place)
    with pytest.raises(ConfigError, match="without a token; pass --token-file FILE"):
        ended[0].raiseException()
    assert not reactor.tcpServers
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    task = Deferred.fromCoroutine(serve(reactor, tmp_path, place, str(token), ("a.example",)))
    session = reactor.tcpServers[0][1].buildProtocol(None).session
    assert (session.token, session.hosts) == ("0123456789abcdef", {"a.example"})
    task.cancel()


def test_loopback_accepts_local_host_names_only(tmp_path: Path) -> None:
    reactor = MemoryReactorClock()
    task, _ = start(reactor, tmp_path, "[::1]:8120")
    session = reactor.tcpServers[0][1].buildProtocol(None).session
    assert (session.token, session.hosts) == (None, {"localhost", "127.0.0.1", "::1"})
    task.cancel()


@pytest.mark.parametrize("place", ["here", "127.0.0.1", "127.0.0.1:99999", "h:x"])
def test_invalid_address_is_refused(tmp_path: Path, place: str) -> None:
    _, ended = start(MemoryReactorClock(), tmp_path, place)
    with pytest.raises(FyrehoseError, match="HOST:PORT"):
        ended[0].raiseException()


def test_missing_journal_or_port_in_use_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = MemoryReactorClock()
    _, ended = start(reactor, tmp_path / "not", "127.0.0.1:1")
    with pytest.raises(FyrehoseError, match="is no journal"):
        ended[0].raiseException()

    def refuse(*args: Any, **options: Any) -> None:
        raise CannotListenError("127.0.0.1", 1, "it is taken")

    monkeypatch.setattr(reactor, "listenTCP", refuse)
    _, ended = start(reactor, tmp_path, "127.0.0.1:1")
    with pytest.raises(FyrehoseError, match=r"cannot listen on .*: it is taken"):
        ended[0].raiseException()
