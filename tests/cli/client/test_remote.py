"""What is asked of a server's admin listener, and what is said when the answer is none."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.net.clients import ServerUnavailable
from fyrehose.testing.certificates import Authority
from tests.doubles.answering import Answering, answer, own, proxy


def test_status_is_requested_and_parsed() -> None:
    with Answering([own({"journal": {"state": "writable"}})]) as there:
        found = RemoteServer.of(f"{there.url}/", None).status("a/b", 7)
    assert found == {"journal": {"state": "writable"}}
    ((method, target, headers, body),) = there.requests
    assert (method, target, body) == ("GET", "/api/status?match=a%2Fb&limit=7", b"")
    assert headers["host"] == there.url.removeprefix("http://")
    assert "authorization" not in headers


def test_a_path_of_the_url_precedes_that_of_the_request() -> None:
    with Answering([own({"journal": {}})]) as there:
        RemoteServer.of(f"{there.url}/fyrehose/", None).status()
    assert there.requests[0][1].startswith("/fyrehose/api/status?")


def test_streams_are_requested_by_page() -> None:
    with Answering([own({"listed": []})]) as there:
        assert RemoteServer.of(f"{there.url}/", None).streams("a", 3, 9) == {"listed": []}
    assert there.requests[0][1] == "/api/streams?match=a&page=3&limit=9"


def test_token_is_sent_and_kept_out_of_the_representation(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with Answering([own({"journal": {}})] * 2) as there:
        for text in ("secret\nmore", "tökén"):
            token.write_text(text, encoding="utf-8")
            asker = RemoteServer.of(there.url, token)
            asker.status()
            assert "secret" not in repr(asker)
    sent = [headers["authorization"].encode("latin-1") for _, _, headers, _ in there.requests]
    assert sent == [b"Bearer secret", "Bearer tökén".encode()], "as a server reads it"


def refusal(status: int, detail: str) -> bytes:
    return own({"error": detail}, status)


FOREIGN = "is not a Fyrehose admin listener"


@pytest.mark.parametrize(
    ("said", "words", "passes"),
    [
        (refusal(401, "no"), "requires a token; pass --token-file FILE", False),
        (refusal(421, "not by that name"), "refused the request: not by that name", False),
        (refusal(503, "the journal is closing"), "refused the request: the journal is closing", True),
        (proxy(502), "a proxy sent HTTP status 502; try again", True),
        (proxy(404), FOREIGN, True),
        (refusal(404, "POST to me"), rf"{FOREIGN}; .* \(it answered with HTTP status 404\)", True),
        (proxy(200), FOREIGN, True),
        (answer(200, b"[]"), FOREIGN, True),
        (own({"other": 1}), FOREIGN, True),
        (answer(200, b"\xff"), FOREIGN, True),
        (answer(200, b"[" * 100_000), FOREIGN, True),
        (b"\x08\x00 SSH\r\n\r\n", FOREIGN, True),
        (b"", "cannot connect to .*: the server closed the connection before the end of its answer", True),
        (own({"journal": {}})[:-1], "the server closed the connection before the end of its answer", True),
    ],
)
def test_error_says_what_failed_and_what_to_do(said: bytes, words: str, passes: bool) -> None:
    with Answering([said]) as there, pytest.raises(FyrehoseError, match=words) as error:
        RemoteServer.of(there.url).status()
    assert isinstance(error.value, ServerUnavailable) is passes


def test_a_server_that_cannot_be_reached_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnavailable, match=f"cannot connect to http://127.0.0.1:{port}: Connection refused"):
        RemoteServer.of(f"http://127.0.0.1:{port}").status()


def test_an_untrusted_certificate_and_a_server_without_tls_are_errors(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with Answering([own({"journal": {}})] * 2, context) as there:
        url = there.url.replace("http:", "https:")
        with pytest.raises(ServerUnavailable, match=f"certificate verification failed for {url}: .*; pass --ca FILE"):
            RemoteServer.of(url).status()
        assert RemoteServer.of(url, None, Path(authority.certificate)).status() == {"journal": {}}
    with Answering([own({"journal": {}})]) as there, pytest.raises(ServerUnavailable, match="does not speak TLS"):
        RemoteServer.of(there.url.replace("http:", "https:")).status()


def test_token_with_control_characters_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a\0b", encoding="utf-8")
    with pytest.raises(ConfigError, match="control characters"):
        RemoteServer.of("http://x:1", token)


def test_wrong_token_and_missing_token_have_different_errors() -> None:
    words = "does not accept the token in --token-file"
    with Answering([refusal(401, "no")]) as there, pytest.raises(FyrehoseError, match=words):
        RemoteServer(there.url, "wrong").status()


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
