"""Test HAProxy with deploy/cluster/haproxy.cfg: publishers reach the leader of a cluster, others any server."""

from __future__ import annotations

import json
import re
import shutil
import signal
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from benchmarks.local_cluster import Cluster
from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_ports
from tests.live.conftest import haproxy, until, with_nats
from tests.live.test_cluster import PATIENCE

CONFIG = Path(__file__).parents[2] / "deploy" / "cluster" / "haproxy.cfg"

pytestmark = with_nats(600)


@attrs.define(eq=False)
class Balanced:
    """A cluster behind HAProxy."""

    cluster: Cluster
    publishers: str
    readers: str
    page: str
    trust: ssl.SSLContext

    def ask(self, url: str, body: bytes | None = None) -> bytes:
        """Repeat a request until it is answered with status 200; return the answer."""
        deadline = time.monotonic() + PATIENCE
        while True:
            context = self.trust if url.startswith("https:") else None
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body), timeout=15, context=context) as answer:
                    return bytes(answer.read())
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[Balanced]:
    authority = Authority(tmp_path)
    issued = authority.issue("page", "localhost", "127.0.0.1")
    cluster = Cluster(tmp_path)
    for server in cluster.servers.values():
        server.more = '[option.server]\ndrain = "10m"\n\n'
        server.more += f'[option.admin]\ntls-certificate = "{issued.certificate}"\ntls-key = "{issued.key}"\n\n'
    (tmp_path / "page.pem").write_text(Path(issued.certificate).read_text() + Path(issued.key).read_text())
    shutil.copy(authority.certificate, tmp_path / "fyrehose-ca.pem")
    ports = free_ports(3)
    text = CONFIG.read_text().replace("/etc/haproxy/", f"{tmp_path}/").replace(" port 8118 ", " ")
    for old, new in zip((8117, 8127, 8118), ports, strict=True):
        text = re.sub(rf"bind :{old}\b", f"bind 127.0.0.1:{new}", text)
    for number, server in enumerate(cluster.servers.values(), 1):
        _, http, page = server.ports
        text = text.replace(f"10.0.0.{number}:8117", f"127.0.0.1:{http} port {page}")
        text = text.replace(f"10.0.0.{number}:8118", f"127.0.0.1:{page}")
    with cluster, haproxy(text, tmp_path):
        publishers, readers, page = (f"127.0.0.1:{port}" for port in ports)
        trust = ssl.create_default_context(cafile=authority.certificate)
        yield Balanced(cluster, f"http://{publishers}", f"http://{readers}", f"https://{page}", trust)


def test_a_stop_moves_publishers_to_another_server_before_it_drains(balanced: Balanced) -> None:
    balanced.ask(f"{balanced.publishers}/streams/s", b"before")
    shown = json.loads(balanced.ask(f"{balanced.page}/api/status"))["journal"]["cluster"]
    stopped = balanced.cluster.servers[shown["leader"]]
    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGTERM)
    until(lambda: f"{stopped.name} hands over to" in stopped.log, lambda: stopped.log[-3000:])
    last = json.loads(balanced.ask(f"{balanced.publishers}/streams/s", b"after"))["last"]
    lines = balanced.ask(f"{balanced.readers}/streams/s?from={last}&at-least={last}").splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["after"]
    assert stopped.process.poll() is None, "the server drains for ten minutes"
    assert stopped.stop() == 0, "a second signal ends that"


def test_a_load_balancer_finds_the_right_server_before_and_after_a_takeover(balanced: Balanced) -> None:
    last = 0
    for payload in (b"before", b"after"):
        last = json.loads(balanced.ask(f"{balanced.publishers}/streams/s", payload))["last"]
        for _ in range(6):  # each server in turn
            lines = balanced.ask(f"{balanced.readers}/streams/s?from={last}&at-least={last}").splitlines()
            assert [json.loads(line)["payload"] for line in lines] == [payload.decode()]
        assert b"<title>Fyrehose" in balanced.ask(f"{balanced.page}/")
        shown = json.loads(balanced.ask(f"{balanced.page}/api/status"))["journal"]["cluster"]
        if payload == b"before":
            balanced.cluster.servers[shown["leader"]].stop(signal.SIGKILL)
    assert last >= 2
