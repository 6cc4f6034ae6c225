"""Clients behind a proxy whose server is killed and started again: none of them ends, loses or doubles anything."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import attrs
import pytest

from fyrehose.testing.ports import free_ports
from tests.live.conftest import FYREHOSE, PATIENCE, Start, TwistdServer, program, until

NODE = shutil.which("node")

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

#: nginx as its package has it, but for the ports and the files: a plain proxy_pass, which speaks HTTP/1.0.
NGINX = """
pid nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    VERSION
    server { listen 127.0.0.1:FRONT; location / { proxy_pass http://127.0.0.1:HTTP; } }
    server { listen 127.0.0.1:PAGE; location / { proxy_pass http://127.0.0.1:ADMIN; } }
}
"""
#: HAProxy, whose checks by default are OPTIONS / of HTTP/1.0, without a Host.
HAPROXY = """
defaults
    mode http
    option httpchk
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    default-server check inter 500ms
listen http
    bind 127.0.0.1:FRONT
    server one 127.0.0.1:HTTP
listen page
    bind 127.0.0.1:PAGE
    server one 127.0.0.1:ADMIN
"""
#: How long the server is down after each kill, in seconds.
DOWN_S = 2.0
#: How often the server is killed by `make test`, and by `make torture`, and the seconds that it is up before each kill:
#: ten minutes for each proxy, in which clients that back off for up to five seconds get on, too.
KILLS, UP_S = (3, 40), (1, 12)
#: Messages that the command publishes for each kill, and those of the client in JavaScript, which pauses after each.
COUNT, JS_COUNT = 750, 10


@attrs.define(eq=False)
class Proxied:
    """A server behind a proxy, and the clients that use it."""

    start: Callable[[], TwistdServer]
    server: TwistdServer
    directory: Path
    front: int
    page: int
    proxy: str
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
        return self.run(FYREHOSE, command, *words)

    def output_of(self, client: subprocess.Popen[str]) -> list[str]:
        return (self.directory / f"client-{self.clients.index(client)}").read_text().splitlines()

    def errors_of(self, client: subprocess.Popen[str]) -> str:
        return (self.directory / f"client-{self.clients.index(client)}.errors").read_text()

    @property
    def answers(self) -> bool:
        """Return whether the proxy passes requests on to both listeners."""
        try:
            for port in (self.front, self.page):
                urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE).close()
        except OSError:
            return False
        return True

    def restart(self, *answered: tuple[subprocess.Popen[str], str]) -> None:
        """Kill the server, and start it again after a while, in which the proxy answers for it.

        :param answered: clients that must meet such an answer before, and what each of them says of it
        """
        self.server.process.kill()
        self.server.process.wait()
        time.sleep(DOWN_S)
        until(lambda: all(words in self.errors_of(client) for client, words in answered))
        self.server = self.start()

    def payloads(self, stream: str) -> list[str]:
        with urlopen(f"http://127.0.0.1:{self.front}/streams/{stream}?limit=1000000", timeout=PATIENCE) as answer:
            return [json.loads(line)["payload"] for line in answer]


def proxy(name: str, directory: Path, ports: dict[str, int]) -> subprocess.Popen[bytes]:
    """Start a proxy of others, or skip the test.

    With HTTP/1.0 an answer ends with its connection, so that nginx cannot see that a server was killed in the middle of
    it, and ends the answer properly.
    """
    kind, _, version = name.partition(" ")
    spoken = f"proxy_http_version {version};" if version else ""
    text = (NGINX if kind == "nginx" else HAPROXY).replace("VERSION", spoken)
    text = re.sub(r"\b(HTTP|ADMIN|FRONT|PAGE)\b", lambda found: str(ports[found[0]]), text)
    (directory / "proxy.conf").write_text(text)
    words = ("-db", "-f", str(directory / "proxy.conf"))
    if kind == "nginx":
        words = ("-p", str(directory), "-e", "nginx.log", "-c", "proxy.conf", "-g", "daemon off; master_process off;")
    return subprocess.Popen([program(kind), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(params=["nginx", "nginx 1.1", "haproxy"])
def proxied(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Iterator[Proxied]:
    """Start a server behind a proxy."""
    http, admin, front, page = free_ports(4)
    started = proxy(request.param, tmp_path, {"HTTP": http, "ADMIN": admin, "FRONT": front, "PAGE": page})

    def serve() -> TwistdServer:
        listeners = [f"http=tcp:{http}:interface=127.0.0.1", f"admin=tcp:{admin}:interface=127.0.0.1"]
        return start(*(word for each in listeners for word in ("--listen", each)))

    found = Proxied(serve, serve(), tmp_path, front, page, request.param)
    try:
        until(lambda: found.answers)
        yield found
    finally:
        for each in (started, *found.clients):  # the proxy first, because closing the input of a client may fail
            each.kill()
            each.wait()
            if each.stdin is not None:
                each.stdin.close()


def test_live_answers_arrive_at_once_through_a_proxy(proxied: Proxied) -> None:
    """With a plain proxy_pass nginx collects an answer in its buffers, unless the answer forbids that."""
    with (
        urlopen(f"http://127.0.0.1:{proxied.front}/streams/s/live", timeout=PATIENCE) as live,
        urlopen(f"http://127.0.0.1:{proxied.page}/api/events", timeout=PATIENCE) as page,
    ):
        assert live.readline() == b"event: begin\n"
        assert page.readline() == b"event: history\n"
        for payload in ("one", "two"):
            with urlopen(f"http://127.0.0.1:{proxied.front}/streams/s", payload.encode(), timeout=PATIENCE):
                pass
            line = next(line for line in live if line.startswith(b"data: ") and b"payload" in line)
            assert json.loads(line[6:])["payload"] == payload
        assert next(line for line in page if line == b"event: sample\n")


@pytest.mark.timeout(1_500)
def test_clients_survive_kills_of_the_server_behind_a_proxy(
    proxied: Proxied, ladder: Callable[[int, int], int]
) -> None:
    """0 lost, 0 doubled: publishes have keys, tails continue by number, and work is settled by its tokens."""
    kills = ladder(*KILLS)
    count, js_count = COUNT * (kills + 1), JS_COUNT * (kills + 1)
    address, url = f"127.0.0.1:{proxied.front}", f"http://127.0.0.1:{proxied.front}"
    to_stream = ("--protocol", "http", "--stream", "s", "--timeout", "60s")
    publish = proxied.fyrehose("publish", "--to", address, *to_stream)
    tails = [
        proxied.fyrehose("tail", "--from", address, *to_stream, "--since", "start", "--count", str(count), *words)
        for words in ((), ("--subscription", "named"))
    ]
    command = ("sh", "-c", "cat >> worked; echo >> worked")
    work = proxied.fyrehose("work", "--url", url, "--stream", "some", "--subscription", "shared", "--", *command)
    top = proxied.fyrehose("top", "--url", f"http://127.0.0.1:{proxied.page}", "--format", "json", "--interval", "0.5")
    answers = ((work, "status 502"), (top, "a proxy sent HTTP status 502"))
    js = None if NODE is None else proxied.run(NODE, str(Path(__file__).with_name("proxied.mjs")), url, str(js_count))
    assert publish.stdin is not None
    sent = [f"message {number}" for number in range(count)]
    for number in range(kills + 1):
        part = sent[number * COUNT : (number + 1) * COUNT]
        for at, line in enumerate(part):
            publish.stdin.write(f"{line}\n")
            if at == len(part) // 2 and number < kills:
                publish.stdin.flush()
                time.sleep(ladder(*UP_S))
                some = proxied.fyrehose(
                    "publish", "--to", address, "--protocol", "http", "--stream", "some", f"{number}"
                )
                assert some.wait(PATIENCE) == 0
                # HAProxy tries to connect for some seconds, after which the server may be back.
                proxied.restart(*(() if proxied.proxy == "haproxy" else answers))
    publish.stdin.close()
    for each in (publish, *tails):
        assert each.wait(PATIENCE) == 0, proxied.errors_of(each)
    assert proxied.payloads("s") == sent
    for tail in tails:
        assert proxied.output_of(tail) == sent
    if js is not None:
        assert js.wait(PATIENCE) == 0, proxied.errors_of(js)
        seen = json.loads(proxied.output_of(js)[-1])
        expected = [f"js {number}" for number in range(js_count)]
        assert proxied.payloads("js") == expected
        assert seen == {"followed": expected, "consumed": expected, "worked": sorted(expected)}
    until(lambda: len(worked(proxied)) >= kills)
    assert sorted(worked(proxied)) == sorted(proxied.payloads("some"))
    until(lambda: json.loads(proxied.output_of(top)[-1])["pid"] == proxied.server.process.pid)
    for each, _ in answers:
        assert each.poll() is None, proxied.errors_of(each)
        each.send_signal(signal.SIGINT)
    assert work.wait(PATIENCE) == 128 + signal.SIGINT
    assert top.wait(PATIENCE) == 0


def worked(proxied: Proxied) -> list[str]:
    path = proxied.directory / "worked"
    return path.read_text().splitlines() if path.exists() else []
