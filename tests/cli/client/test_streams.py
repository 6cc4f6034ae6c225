"""``fyrehose streams``: what is listed by default, and what retired."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.command import main


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["streams", *words], env={"COLUMNS": "100"})


@attrs.define
class Server:
    """Answers requests of urllib; a request for a stream in *refusals* is answered with that error."""

    asked: list[urllib.request.Request] = attrs.field(factory=list)
    refusals: dict[str, tuple[int, bytes]] = attrs.field(factory=dict)

    def urlopen(self, request: urllib.request.Request, timeout: float, context: Any) -> io.BytesIO:
        self.asked.append(request)
        refusal = self.refusals.get(request.full_url.rpartition("/")[2])
        if refusal is not None:
            raise urllib.error.HTTPError(request.full_url, refusal[0], "no", Message(), io.BytesIO(refusal[1]))
        return io.BytesIO(b"")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(urllib.request, "urlopen", found.urlopen)
    return found


def refusal(detail: str) -> bytes:
    return json.dumps({"error": detail}).encode()


def test_streams_are_retired_one_after_the_other(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    result = run("retire", "--url", "http://there:1/", "--token-file", str(token), "a/b ä", "c\x1b")
    assert result.exit_code == 0
    assert result.output == "stream a/b ä retired\nstream c\\x1b retired\n"
    assert [(request.method, request.full_url) for request in server.asked] == [
        ("DELETE", "http://there:1/streams/a%2Fb%20%C3%A4"),
        ("DELETE", "http://there:1/streams/c%1B"),
    ]
    assert {request.get_header("Authorization") for request in server.asked} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            404,
            refusal("there is no stream 'b'"),
            "the server at http://127.0.0.1:8117 refused the request: there is no stream 'b'",
        ),
        (403, refusal("10.0.0.1 may not"), "the server at http://127.0.0.1:8117 refused the request: 10.0.0.1 may not"),
        (401, refusal("x"), "the server at http://127.0.0.1:8117 requires a token; pass --token-file FILE"),
        (
            404,
            b"<html>",
            "http://127.0.0.1:8117 is not a Fyrehose http listener; check --url (it answered with HTTP status 404)",
        ),
    ],
)
def test_retire_stops_at_the_first_refusal(server: Server, status: int, body: bytes, said: str) -> None:
    server.refusals["b"] = (status, body)
    result = run("retire", "a", "b", "c")
    assert result.exit_code == 1
    assert result.stdout == "stream a retired\n"
    assert result.stderr == f"fyrehose: {said}\n"
    assert len(server.asked) == 2


def test_unreachable_server_and_invalid_url_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*args: Any, **more: Any) -> Any:
        raise urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    result = run("retire", "a")
    assert result.exit_code == 1
    assert "or with --listen http=tcp:8117:interface=127.0.0.1" in result.stderr
    assert "fyrehose[admin]" not in result.stderr
    wrong = run("retire", "--url", "x", "a")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "fyrehose: invalid --url 'x': expected a URL with a host and a port, such as http://127.0.0.1:8117\n",
    )


def test_retire_requires_a_name(server: Server) -> None:
    assert run("retire").exit_code == 2
    assert server.asked == []


@pytest.mark.parametrize("words", [[], ["part"], ["--format", "json"], ["--format", "json", "part"], ["list", "part"]])
def test_list_is_the_default_command(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    asked = []

    def status(asker: RemoteServer, match: str, limit: int) -> dict[str, Any]:
        asked.append(match)
        return {"streams": {"total": 0, "matching": 0, "listed": []}}

    monkeypatch.setattr(RemoteServer, "status", status)
    assert run(*words).exit_code == 0
    assert asked == ["part" if "part" in words else ""]


def test_list_finds_names_that_contain_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    listed: dict[str, Any] = {"streams": {"total": 0, "matching": 0, "listed": []}}
    monkeypatch.setattr(RemoteServer, "status", lambda asker, match, limit: asked.append(match) or listed)
    assert run("list", "retire").exit_code == 0
    assert asked == ["retire"]
    assert "retire" in run("--help").output
