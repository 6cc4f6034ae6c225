"""Test HAProxy with deploy/cluster/by-stream.cfg: it divides streams by their names over two servers."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_ports
from tests.live.conftest import PATIENCE, Start, haproxy, listening

CONFIGS = Path(__file__).parents[2] / "deploy" / "cluster"

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
]


def ask(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and the body of an answer, of HAProxy's 503 only when it stays."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                return error.code, error.read()
        except OSError:
            assert time.monotonic() < deadline, url
        time.sleep(0.1)


@pytest.fixture
def divided(start: Start, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of HAProxy, and those of the two servers behind it."""
    authority = Authority(tmp_path)
    issued = authority.issue("localhost", "127.0.0.1")
    tls = (f"admin.tls-certificate={issued.certificate}", f"admin.tls-key={issued.key}")
    tmp_path.joinpath("page.pem").write_text(Path(issued.certificate).read_text() + Path(issued.key).read_text())
    text = "".join(CONFIGS.joinpath(name).read_text() for name in ("haproxy.cfg", "by-stream.cfg"))
    text = re.sub(r" +server [bc] .*\n", "", text)
    text = text.replace("/etc/haproxy/page.pem", f"{tmp_path}/page.pem").replace(" port 8118 ", " ")
    text = text.replace("/etc/haproxy/fyrehose-ca.pem", str(authority.certificate))
    servers = {}
    for name, address in (("logs", "10.0.0.1"), ("audit", "10.0.1.1")):
        words = [word for each in tls for word in ("--option", each)]
        server = start("--data-dir", name, *listening("http", "admin"), *words, before=("-n", f"--pidfile={name}.pid"))
        servers[name] = f"http://127.0.0.1:{server.port('http')}"
        page = server.port("admin")
        text = text.replace(f"{address}:8117", f"127.0.0.1:{server.port('http')} port {page}")
        text = text.replace(f"{address}:8118", f"127.0.0.1:{page}")
    ports = dict(zip((8117, 8127, 8118, 8137), free_ports(4), strict=True))
    text = re.sub(r"bind :(\d+)", lambda found: f"bind 127.0.0.1:{ports[int(found[1])]}", text)
    with haproxy(text, tmp_path):
        yield f"http://127.0.0.1:{ports[8137]}", servers


def test_each_stream_is_on_the_server_that_its_name_says(divided: tuple[str, dict[str, str]]) -> None:
    front, servers = divided
    for stream, name in (("logs.web", "logs"), ("audit.login", "audit"), ("%61udit.login", "audit")):
        assert ask(f"{front}/streams/{stream}", name.encode())[0] == 200
        assert json.loads(ask(f"{front}/streams/{stream}")[1].splitlines()[0])["payload"] == name
    for name, stream in (("logs", "logs.web"), ("audit", "audit.login")):
        listed = json.loads(ask(f"{servers[name]}/streams")[1])["streams"]
        assert [each["name"] for each in listed if not each["name"].startswith(".")] == [stream]


def test_a_name_that_belongs_to_no_cluster_is_refused_with_a_reason(divided: tuple[str, dict[str, str]]) -> None:
    front, _ = divided
    for path in ("/streams/web", "/streams/logs", "/streams/xlogs.web", "/subscriptions/other"):
        status, body = ask(front + path, b"x")
        assert (status, b"no cluster has this stream" in body) == (404, True), path
