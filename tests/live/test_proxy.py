"""Clients behind nginx while their server is killed and started again: none of them ends, loses or doubles anything."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import attrs
import pytest

from fyrehose.testing.ports import free_ports
from tests.live.conftest import PATIENCE, Start, TwistdServer

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
NODE = shutil.which("node")
FYREHOSE = Path(sys.executable).with_name("fyrehose")

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(NGINX is None, reason="a server of others is not installed: nginx"),
]

CONFIG = """
pid nginx.pid;
events {}
http {
    access_log off;
    proxy_buffering off;
    proxy_http_version VERSION;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server { listen 127.0.0.1:FRONT; location / { proxy_pass http://127.0.0.1:HTTP; } }
    server { listen 127.0.0.1:PAGE; location / { proxy_pass http://127.0.0.1:ADMIN; } }
}
"""
#: How often the server is killed, and how long it is down, in seconds.
KILLS, DOWN_S = 3, 2.0
#: Messages that the command publishes, and that the client in JavaScript does.
COUNT, JS_COUNT = 3_000, 150


@attrs.define(eq=False)
class Proxied:
    """A server behind nginx, and the clients that use it."""

    start: Callable[[], TwistdServer]
    server: TwistdServer
    directory: Path
    front: int
    page: int
    clients: list[subprocess.Popen[str]] = attrs.field(factory=list)

    def run(self, *words: str) -> subprocess.Popen[str]:
        """Start a client, whose standard output and error go to files."""
        path = self.directory / f"client-{len(self.clients)}"
        with path.open("w") as out, path.with_suffix(".errors").open("w") as errors:
            made = subprocess.Popen(
                words, cwd=self.directory, stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True
            )
        self.clients.append(made)
        return made

    def fyrehose(self, command: str, *words: str) -> subprocess.Popen[str]:
        return self.run(str(FYREHOSE), command, *words)

    def output_of(self, client: subprocess.Popen[str]) -> list[str]:
        return (self.directory / f"client-{self.clients.index(client)}").read_text().splitlines()

    def errors_of(self, client: subprocess.Popen[str]) -> str:
        return (self.directory / f"client-{self.clients.index(client)}.errors").read_text()

    def restart(self) -> None:
        """Kill the server, and start it again after a while, in which nginx answers for it."""
        self.server.process.kill()
        self.server.process.wait()
        time.sleep(DOWN_S)
        self.server = self.start()

    def payloads(self, stream: str) -> list[str]:
        with urlopen(f"http://127.0.0.1:{self.front}/streams/{stream}?limit=100000", timeout=PATIENCE) as answer:
            return [json.loads(line)["payload"] for line in answer]


@pytest.fixture(params=["1.0", "1.1"])
def proxied(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Iterator[Proxied]:
    """Start a server behind nginx, which speaks HTTP/1.0 with it (its default), or HTTP/1.1.

    With HTTP/1.0 an answer ends with its connection, so that nginx cannot see that a server was killed in the middle of
    it, and ends the answer properly.
    """
    http, admin, front, page = free_ports(4)
    text = CONFIG.replace("VERSION", request.param).replace("FRONT", str(front)).replace("PAGE", str(page))
    (tmp_path / "nginx.conf").write_text(text.replace("HTTP;", f"{http};").replace("ADMIN;", f"{admin};"))

    def serve() -> TwistdServer:
        listeners = [f"http=tcp:{http}:interface=127.0.0.1", f"admin=tcp:{admin}:interface=127.0.0.1"]
        return start(*(word for each in listeners for word in ("--listen", each)))

    options = ("-p", str(tmp_path), "-e", "nginx.log", "-c", "nginx.conf", "-g", "daemon off; master_process off;")
    assert NGINX is not None
    nginx = subprocess.Popen([NGINX, *options], stderr=subprocess.DEVNULL)
    found = Proxied(serve, serve(), tmp_path, front, page)
    try:
        yield found
    finally:
        for each in (nginx, *found.clients):  # nginx first, because closing the input of a client may fail
            each.kill()
            each.wait()
            if each.stdin is not None:
                each.stdin.close()


def test_clients_survive_kills_of_the_server_behind_a_proxy(proxied: Proxied) -> None:
    """0 lost, 0 doubled: publishes have keys, tails continue by number, and work is settled by its tokens."""
    address, url = f"127.0.0.1:{proxied.front}", f"http://127.0.0.1:{proxied.front}"
    to_stream = ("--protocol", "http", "--stream", "s", "--timeout", "60s")
    publish = proxied.fyrehose("publish", "--to", address, *to_stream)
    tails = [
        proxied.fyrehose("tail", "--from", address, *to_stream, "--since", "start", "--count", str(COUNT), *words)
        for words in ((), ("--subscription", "named"))
    ]
    command = ("sh", "-c", "cat >> worked; echo >> worked")
    work = proxied.fyrehose("work", "--url", url, "--stream", "some", "--subscription", "shared", "--", *command)
    top = proxied.fyrehose("top", "--url", f"http://127.0.0.1:{proxied.page}", "--format", "json", "--interval", "0.5")
    js = None if NODE is None else proxied.run(NODE, str(Path(__file__).with_name("proxied.mjs")), url, str(JS_COUNT))
    assert publish.stdin is not None
    sent = [f"message {number}" for number in range(COUNT)]
    for number in range(KILLS + 1):
        part = sent[number * COUNT // (KILLS + 1) : (number + 1) * COUNT // (KILLS + 1)]
        for at, line in enumerate(part):
            publish.stdin.write(f"{line}\n")
            if at == len(part) // 2 and number < KILLS:
                publish.stdin.flush()
                time.sleep(1)
                some = proxied.fyrehose(
                    "publish", "--to", address, "--protocol", "http", "--stream", "some", f"{number}"
                )
                assert some.wait(PATIENCE) == 0
                proxied.restart()
    publish.stdin.close()
    for each in (publish, *tails):
        assert each.wait(PATIENCE) == 0, proxied.errors_of(each)
    assert proxied.payloads("s") == sent
    for tail in tails:
        assert proxied.output_of(tail) == sent
    if js is not None:
        assert js.wait(PATIENCE) == 0, proxied.errors_of(js)
        seen = json.loads(proxied.output_of(js)[-1])
        expected = [f"js {number}" for number in range(JS_COUNT)]
        assert proxied.payloads("js") == expected
        assert seen == {"followed": expected, "consumed": expected, "worked": sorted(expected)}
    until(lambda: len(worked(proxied)) >= KILLS)
    assert sorted(worked(proxied)) == sorted(proxied.payloads("some"))
    until(lambda: json.loads(proxied.output_of(top)[-1])["pid"] == proxied.server.process.pid)
    for each, words in ((work, "status 502"), (top, "a proxy sent HTTP status 502")):
        assert each.poll() is None, proxied.errors_of(each)
        assert words in proxied.errors_of(each)
        each.send_signal(signal.SIGINT)
    assert work.wait(PATIENCE) == 128 + signal.SIGINT
    assert top.wait(PATIENCE) == 0


def worked(proxied: Proxied) -> list[str]:
    path = proxied.directory / "worked"
    return path.read_text().splitlines() if path.exists() else []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
