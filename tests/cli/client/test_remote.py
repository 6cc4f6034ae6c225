"""What is asked of a server's admin listener, and what is said when the answer is none."""

from __future__ import annotations

import io
import json
import ssl
import urllib.error
import urllib.request
from email.message import Message
from http.client import BadStatusLine, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.errors import ConfigError, FyrehoseError


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the answer of the next requests, and returns the requests so far."""
    asked: list[urllib.request.Request] = []
    answers: list[Any] = []

    def urlopen(request: urllib.request.Request, timeout: float, context: Any) -> Any:
        asked.append(request)
        said = answers.pop()
        if isinstance(said, Exception):
            raise said
        return io.BytesIO(said)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)

    def answer(said: Any) -> list[urllib.request.Request]:
        answers.append(said)
        return asked

    return answer


def untrusted() -> ssl.SSLCertVerificationError:
    """Return the error that a TLS handshake raises for an untrusted certificate."""
    error = ssl.SSLCertVerificationError(1, "self-signed")
    error.verify_message = "self-signed certificate"
    return error


def refusal(code: int, body: bytes) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", code, "no", Message(), io.BytesIO(body))


def test_status_is_requested_and_parsed(answer: Any) -> None:
    asked = answer(b'{"journal": {"state": "writable"}}')
    assert RemoteServer.of("http://x:1/", None).status("a/b", 7) == {"journal": {"state": "writable"}}
    assert asked[0].full_url == "http://x:1/api/status?match=a%2Fb&limit=7"
    assert not asked[0].has_header("Authorization")


def test_streams_are_requested_by_page(answer: Any) -> None:
    asked = answer(b'{"listed": []}')
    assert RemoteServer.of("http://x:1/", None).streams("a", 3, 9) == {"listed": []}
    assert asked[0].full_url == "http://x:1/api/streams?match=a&page=3&limit=9"


def test_token_is_sent_and_kept_out_of_the_representation(answer: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\nmore")
    asked = answer(b'{"journal": {}}')
    asker = RemoteServer.of("http://x:1", token)
    asker.status()
    assert asked[0].get_header("Authorization") == "Bearer secret"
    assert "secret" not in repr(asker)
    token.write_text("tökén", encoding="utf-8")
    asked = answer(b'{"journal": {}}')
    RemoteServer.of("http://x:1", token).status()
    assert str(asked[1].get_header("Authorization")).encode("latin-1") == "Bearer tökén".encode(), (
        "as a server reads it"
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")),
            "cannot connect to http://x:1: Connection refused",
        ),
        (urllib.error.URLError("unknown url type"), "cannot connect to http://x:1: unknown url type"),
        (TimeoutError("timed out"), "cannot connect to http://x:1: timed out"),
        (
            urllib.error.URLError(untrusted()),
            "certificate verification failed for http://x:1: .*; pass --ca FILE",
        ),
        (refusal(401, b"{}"), "requires a token; pass --token-file FILE"),
        (refusal(421, json.dumps({"error": "not by that name"}).encode()), "refused the request: not by that name"),
        (refusal(404, b"<html>"), "not a Fyrehose admin listener"),
        (
            refusal(404, json.dumps({"error": "POST to me"}).encode()),
            r"not a Fyrehose admin listener; .* \(it answered with HTTP status 404\)",
        ),
        (b"<html>", "not a Fyrehose admin listener"),
        (b"[]", "not a Fyrehose admin listener"),
        (b"\xff", "not a Fyrehose admin listener"),
        (b"[" * 100_000, "not a Fyrehose admin listener"),
        (BadStatusLine("\x08\x00"), "not a Fyrehose admin listener"),
        (IncompleteRead(b"{"), "not a Fyrehose admin listener"),
    ],
)
def test_error_says_what_failed_and_what_to_do(answer: Any, said: Any, words: str) -> None:
    answer(said)
    with pytest.raises(FyrehoseError, match=words):
        RemoteServer.of("http://x:1").status()


def test_token_with_control_characters_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a\0b", encoding="utf-8")
    with pytest.raises(ConfigError, match="control characters"):
        RemoteServer.of("http://x:1", token)


def test_truncated_error_response_is_reported(answer: Any) -> None:
    class Cut(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise IncompleteRead(b"")

    answer(urllib.error.HTTPError("http://x", 500, "no", Message(), Cut()))
    with pytest.raises(FyrehoseError, match="not a Fyrehose admin listener"):
        RemoteServer("http://x:1").status()


def test_wrong_token_and_missing_token_have_different_errors(answer: Any) -> None:
    answer(refusal(401, b"{}"))
    with pytest.raises(FyrehoseError, match="does not accept the token in --token-file"):
        RemoteServer("http://x:1", "wrong").status()


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "localhost:8118", "ftp://x", "file:///etc/passwd", "http://", "http://[::1", "http://x:99999"),
        *(
            "http://exa mple",
            "http://x/y z",
            "http://x\n",
            "http://me:secret@x",
            "http://x?y",
            "http://x#y",
            "http://ö",
        ),
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        RemoteServer.of(url)


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read --"):
        RemoteServer.of("http://x:1", tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot read --"):
        RemoteServer.of("https://x:1", None, tmp_path / "none")
