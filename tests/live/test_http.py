"""Test HTTP with curl against a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.certificates import Authority
from tests.live.conftest import PATIENCE, ran

pytestmark = [pytest.mark.live, pytest.mark.slow]

HTTP = ("--listen", "http=tcp:0:interface=127.0.0.1")
NDJSON = ("-H", "Content-Type: application/x-ndjson")


@pytest.fixture(scope="module", autouse=True)
def curl_is_there() -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")


def curl(*words: str, data: bytes = b"") -> bytes:
    """Run curl; return its output."""
    return ran("curl", "-sS", "--max-time", PATIENCE, *words, input=data, text=False).stdout


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def test_published_messages_are_read_before_and_after_a_kill(start: Any) -> None:
    server = start(*HTTP)
    url = f"http://127.0.0.1:{server.port('http')}/streams/notes"
    assert lines(curl("-d", "hello", url)) == [{"stream": "notes", "count": 1, "first": 1, "last": 1}]
    many = b"".join(b'{"n": %d}\n' % n for n in range(20_000))
    said = lines(curl(*NDJSON, "--data-binary", "@-", url, data=many))
    assert said == [{"stream": "notes", "count": 20_000, "first": 2, "last": 20_001}]
    server.stop(signal.SIGKILL)
    server = start(*HTTP)
    url = f"http://127.0.0.1:{server.port('http')}/streams/notes"
    back = lines(curl(f"{url}?limit=100000"))
    assert [each["seq"] for each in back] == list(range(1, 20_002))
    assert "".join(each["payload"] + "\n" for each in back[1:]).encode() == many


def test_a_binary_file_is_posted_with_its_length_and_in_chunks(start: Any, tmp_path: Path) -> None:
    server = start(*HTTP)
    url = f"http://127.0.0.1:{server.port('http')}/streams/files%2Fa"
    data = os.urandom(3 << 20)
    path = tmp_path / "file"
    path.write_bytes(data)
    words = ("-H", "Content-Type: application/octet-stream", "--data-binary", f"@{path}", url)
    curl(*words)
    curl("-H", "Transfer-Encoding: chunked", *words)
    for each in lines(curl(url)):
        assert ran("base64", "-d", input=each["payload_base64"].encode(), text=False).stdout == data


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(start: Any, tmp_path: Path) -> None:
    server = start(*HTTP, "--option", "http.max-payload=1MiB")
    path = tmp_path / "file"
    path.write_bytes(bytes(40 << 20))
    url = f"http://127.0.0.1:{server.port('http')}/streams/s"
    for words in ((), ("-H", "Expect:"), ("-H", "Transfer-Encoding: chunked")):
        said = curl("-w", "\n%{http_code}", *words, "--data-binary", f"@{path}", url)
        assert said.endswith(b"\n413")
        assert b"error" in said


def test_http_works_with_tls_a_policy_and_a_token(start: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("localhost", "localhost")
    (tmp_path / "policy.toml").write_text(
        '[[allow]]\ntoken = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"\npublish = "*"\n'
    )
    options = {"http.tls-certificate": files.certificate, "http.tls-key": files.key}
    words = [word for name, value in options.items() for word in ("--option", f"{name}={value}")]
    server = start(*HTTP, *words, "--policy", str(tmp_path / "policy.toml"))
    url = f"https://localhost:{server.port('http')}/streams/s"
    trusted = ("--cacert", authority.certificate, "-w", "%{http_code}", "-o", "/dev/null")
    assert curl(*trusted, "-d", "x", url) == b"401"
    assert curl(*trusted, "-H", "Authorization: Bearer secret", "-d", "x", url) == b"200"
    assert curl(*trusted, "-H", "Authorization: Bearer secret", url) == b"403"
