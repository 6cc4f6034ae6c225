"""Test ``fyrehose forward`` with real processes: every destination, kills, reloads, and programs of others."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pylogbeat
import pytest

from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_port, free_ports
from tests.live.conftest import FYREHOSE, PATIENCE, fyrehose, program, stored, until
from tests.live.test_proxy import proxy

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

#: A token that a policy knows by its digest.
TOKEN = "0123456789abcdef" * 2
LISTEN = ("--listen", "http=tcp:0:interface=127.0.0.1")
#: Arguments of twistd, so that several servers can have one directory.
ALONE = ("-n", "--pidfile=")


def publish(server: Any, stream: str, lines: list[str]) -> None:
    to = f"127.0.0.1:{server.port('http')}"
    text = "".join(f"{line}\n" for line in lines)
    fyrehose("publish", "--protocol", "http", "--to", to, "--stream", stream, input=text)


def records(server: Any, stream: str) -> list[str]:
    """Return the payloads of a stream of a running server; none if there is no such stream yet."""
    found: list[str] = []
    while True:
        url = f"http://127.0.0.1:{server.port('http')}/streams/{stream}?from={len(found) + 1}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                lines = [json.loads(line)["payload"] for line in answer]
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            lines = []
        if not lines:
            return found
        found += lines


def lags(port: int) -> dict[str, int]:
    """Return the lag of each subscription of the server whose http listener has *port*."""
    listed = fyrehose("subscriptions", "--url", f"http://127.0.0.1:{port}", "--format", "json").stdout.splitlines()
    return {each["name"]: each["lag"] for each in map(json.loads, listed)}


@pytest.fixture
def forwarding(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that writes the file, and starts ``fyrehose forward``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(text: str = "", *options: str) -> subprocess.Popen[bytes]:
        path = tmp_path / "forward.toml"
        if text:
            path.write_text(text)
        with tmp_path.joinpath("forward.log").open("ab") as log:
            started.append(subprocess.Popen([FYREHOSE, "forward", path, *options], stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def table(server: Any, to: str, *keys: str, name: str = "n", streams: str = "logs.*") -> str:
    source = f'[[forward]]\nname = "{name}"\nfrom = "127.0.0.1:{server.port("http")}"\n'
    return source + f'streams = "{streams}"\nto = "{to}"\n' + "".join(f"{each}\n" for each in keys)


class Search(http.server.BaseHTTPRequestHandler):
    """A double of Elasticsearch's ``_bulk``, which stores an identity once."""

    protocol_version = "HTTP/1.1"
    documents: dict[str, bytes]

    def do_POST(self) -> None:
        lines = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))).split(b"\n")
        names = [json.loads(action)["create"]["_id"] for action in lines[: len(lines) // 2 * 2 : 2]]
        items = [{"create": {"status": 409 if name in self.documents else 201}} for name in names]
        for name, document in zip(names, lines[1::2], strict=True):
            self.documents.setdefault(name, document)
        answer = json.dumps({"errors": any(each["create"]["status"] > 201 for each in items), "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def search() -> Iterator[Any]:
    kind = type("OneSearch", (Search,), {"documents": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield kind, f"elasticsearch+http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_reload_notices_a_certificate_that_was_replaced(start: Any, forwarding: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    trusted, other = Authority(tmp_path), Authority(tmp_path / "other")
    own = trusted.issue("server", "localhost", "127.0.0.1")
    options = ("--option", f"http.tls-certificate={own.certificate}", "--option", f"http.tls-key={own.key}")
    port = start("--data-dir", "there", *LISTEN, *options, before=ALONE).port("http")
    server = start("--data-dir", "data", *LISTEN, before=ALONE)
    publish(server, "logs.web", ["1"])
    authority = tmp_path / "authority-there.pem"
    shutil.copy(other.certificate, authority)
    process = forwarding(table(server, f"fyrehoses://localhost:{port}", f'tls = "{authority.name}"'))
    log = tmp_path / "forward.log"
    until(lambda: "certificate" in log.read_text(), "the wrong authority is accepted")
    shutil.copy(trusted.certificate, authority)
    process.send_signal(signal.SIGHUP)
    until(lambda: lags(server.port("http")) == {"n": 0}, "the record is not delivered")


def test_second_process_takes_over_when_the_first_ends(start: Any, forwarding: Any, tmp_path: Path) -> None:
    """Both begin before their server does."""
    port = free_port()
    text = f'[[forward]]\nname = "n"\nfrom = "127.0.0.1:{port}"\nstreams = "in"\n'
    text += f'to = "fyrehose://127.0.0.1:{port}"\nstream = "copy"\nlongest-pause = "0.5s"\n'
    first = forwarding(text)
    time.sleep(2.0)
    server = start("--data-dir", "data", "--listen", f"http=tcp:{port}:interface=127.0.0.1")
    publish(server, "in", ["1"])
    until(lambda: records(server, "copy") == ["1"], "the first process does not deliver")
    forwarding("")
    until(lambda: "409" in tmp_path.joinpath("forward.log").read_text(), "the second process is not refused")
    first.kill()
    first.wait()
    publish(server, "in", ["2"])
    until(lambda: records(server, "copy") == ["1", "2"], "the second process does not deliver")


RECIPES = Path(__file__).parents[2] / "deploy" / "recipes" / "forward"


def recipe(name: str, **ports: int) -> str:
    """Return a file of docs/recipes.md with other ports, each of which stands there."""
    text = RECIPES.joinpath(name).read_text()
    for port, other in ports.items():
        assert f":{port.removeprefix('p')}" in text
        text = text.replace(f":{port.removeprefix('p')}", f":{other}")
    return text


def beat(port: int, *messages: str) -> None:
    """Send events as Filebeat does."""
    client = pylogbeat.PyLogBeatClient(host="127.0.0.1", port=port, timeout=30, ssl_enable=False)
    client.connect()
    client.send([json.dumps({"message": each, "@metadata": {"beat": "filebeat"}}) for each in messages])
    client.close()


LUMBERJACK = ("--listen", "lumberjack=tcp:0:interface=127.0.0.1")


def test_recipe_sends_the_events_of_filebeat_to_two_places(start: Any, forwarding: Any) -> None:
    """Servers of Fyrehose stand in for Logstash; one of them is down at first."""
    late, http, lumberjack = free_port(), free_port(), free_port()
    start("--data-dir", "a", "--listen", f"lumberjack=tcp:{lumberjack}:interface=127.0.0.1", before=ALONE)
    server = start("--data-dir", "data", "--listen", f"http=tcp:{http}:interface=127.0.0.1", *LUMBERJACK, before=ALONE)
    beat(server.port("lumberjack"), "one", "two")
    forwarding(recipe("two-places.toml", p8117=http, p5045=lumberjack, p5046=late))
    until(lambda: lags(http) == {"to-logstash-a": 0, "to-logstash-b": 2}, "the first place has not got the events")
    start("--data-dir", "b", "--listen", f"lumberjack=tcp:{late}:interface=127.0.0.1", before=ALONE)
    until(lambda: lags(http) == {"to-logstash-a": 0, "to-logstash-b": 0}, "the second place has not got the events")


def test_recipe_sends_the_events_of_filebeat_to_elasticsearch(start: Any, forwarding: Any, search: Any) -> None:
    kind, url = search
    server = start("--data-dir", "data", *LISTEN, *LUMBERJACK)
    beat(server.port("lumberjack"), "one", "two")
    text = recipe("elasticsearch.toml", p8117=server.port("http"), p9200=int(url.rpartition(":")[2]))
    assert forwarding(text, "--once").wait(PATIENCE) == 0
    assert [json.loads(each)["message"] for each in kind.documents.values()] == ["one", "two"]


def test_recipe_forwards_from_the_edge_over_a_bad_link(start: Any, forwarding: Any) -> None:
    """The central server is killed again and again; each record is there once, in order."""
    center, edge = free_port(), free_port()
    listen = ("--data-dir", "center", "--listen", f"http=tcp:{center}:interface=127.0.0.1")
    start("--data-dir", "edge", "--listen", f"http=tcp:{edge}:interface=127.0.0.1", before=ALONE)
    text = recipe("edge.toml", p8117=edge, p8217=center).replace("longest-pause", "#")
    forwarding(text)
    words = ("--protocol", "http", "--to", f"127.0.0.1:{edge}", "--stream", "logs.web")
    server = start(*listen, before=ALONE)
    for round_ in range(8):
        lines = "".join(f"{number}\n" for number in range(500 * round_, 500 * round_ + 500))
        fyrehose("publish", *words, input=lines)
        time.sleep(0.05 * round_)
        server.stop(signal.SIGKILL)
        server = start(*listen, before=ALONE)
    until(lambda: len(records(server, "edge-7.logs.web")) >= 4_000, "records are missing")
    assert records(server, "edge-7.logs.web") == [str(number) for number in range(4_000)]


def test_records_arrive_at_rsyslog_by_relp(start: Any, forwarding: Any, tmp_path: Path) -> None:
    rsyslogd = program("rsyslogd")
    port = free_port()
    tmp_path.joinpath("rsyslog.conf").write_text(
        f'global(workDirectory="{tmp_path}")\nmodule(load="imrelp")\ninput(type="imrelp" port="{port}")\n'
        'template(name="line" type="string" string="%syslogtag% %msg%\\n")\n'
        f'action(type="omfile" file="{tmp_path}/out.log" template="line")\n'
    )
    process = subprocess.Popen(
        [rsyslogd, "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "rsyslog.pid")],
        stderr=subprocess.DEVNULL,
    )
    try:
        server = start("--data-dir", "data", *LISTEN)
        publish(server, "logs.web", [f"line {number}" for number in range(1_000)])
        assert forwarding(table(server, f"relp://127.0.0.1:{port}"), "--once").wait(PATIENCE) == 0
        out = tmp_path / "out.log"
        until(lambda: out.exists() and out.read_text().count("\n") >= 1_000, "records are missing")
        assert [line.split("line ")[1] for line in out.read_text().splitlines()] == [str(each) for each in range(1_000)]
        assert out.read_text().startswith("logs.web")
    finally:
        process.kill()
        process.wait()


def test_servers_that_want_a_token_are_read_and_written_with_it(start: Any, forwarding: Any, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    rights = "\n".join(f'{right} = "*"' for right in ("publish", "subscribe", "consume"))
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tmp_path.joinpath("policy.toml").write_text(f'[[allow]]\ntoken = "sha256:{digest}"\n{rights}\n')
    server = start("--data-dir", "data", *LISTEN, "--policy", "policy.toml")
    place = f"127.0.0.1:{server.port('http')}"
    keys = ('stream = "copy"', 'token = "file:token"', 'from-token = "file:token"')
    from_copy = ("--protocol", "http", "--from", place, "--stream", "copy")
    tail = (FYREHOSE, "tail", *from_copy, "--since", "start", "--count", "2")
    sent = (FYREHOSE, "publish", "--protocol", "http", "--to", place, "--stream", "in", "first", "second")

    def ran(*words: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert ran(*sent).returncode == 1, "a peer without the token publishes nothing"
    assert ran(*sent, "--token-file", secret).returncode == 0
    forwarding(table(server, f"fyrehose://{place}", *keys, streams="in"))
    read = ran(*tail, "--token-file", secret)
    assert (read.returncode, read.stdout) == (0, "first\nsecond\n"), read.stderr
    assert ran(*tail).returncode == 1, "a peer without the token reads nothing"
    refused = ran(FYREHOSE, "publish", "--protocol", "relink", "--stream", "s", "--token-file", secret, "x")
    assert "protocol relink sends no token; leave --token-file out" in refused.stderr


class Program(http.server.BaseHTTPRequestHandler):
    """A program behind a proxy, which keeps the lines of its requests, in the order of these."""

    lines: list[bytes]

    def do_POST(self) -> None:
        body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
        self.lines += body.splitlines()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_records_go_through_nginx_to_a_program_that_was_down(start: Any, forwarding: Any, tmp_path: Path) -> None:
    behind, admin, front, page = free_ports(4)
    nginx = proxy("nginx", tmp_path, {"HTTP": behind, "ADMIN": admin, "FRONT": front, "PAGE": page})
    try:
        server = start("--data-dir", "data", *LISTEN)
        sent = [f'{{"n":{number}}}' for number in range(2_000)]
        publish(server, "logs.web", sent)
        forwarding(table(server, f"http://127.0.0.1:{front}/in", "longest-pause = 0.5", "batch-count = 300"))
        until(lambda: "status 502" in tmp_path.joinpath("forward.log").read_text(), "nginx has not answered")
        kind = type("OneProgram", (Program,), {"lines": []})
        with http.server.ThreadingHTTPServer(("127.0.0.1", behind), kind) as program:
            thread = threading.Thread(target=program.serve_forever)
            thread.start()
            until(lambda: len(kind.lines) >= len(sent), "records are missing")
            program.shutdown()
            thread.join()
        assert [line.decode() for line in kind.lines] == sent
    finally:
        nginx.kill()
        nginx.wait()


@pytest.mark.parametrize(("scheme", "stream"), [("fyrehose", "copy"), ("lumberjack", "lumberjack"), ("relp", "syslog")])
def test_records_are_sent_with_tls(scheme: str, stream: str, start: Any, forwarding: Any, tmp_path: Path) -> None:
    """A destination whose certificate is of another authority gets nothing, and that is said."""
    listener = {"fyrehose": "http", "relp": "syslog"}.get(scheme, scheme)
    (tmp_path / "other").mkdir()
    trusted, other = Authority(tmp_path), Authority(tmp_path / "other")
    own = trusted.issue("server", "localhost", "127.0.0.1")
    options = (f"{listener}.tls-certificate={own.certificate}", f"{listener}.tls-key={own.key}")
    words = [word for each in options for word in ("--option", each)]
    there = start("--data-dir", "there", "--listen", f"{listener}=tcp:0:interface=127.0.0.1", *words, before=ALONE)
    to = f"{scheme}s://localhost:{there.port(listener)}"
    server = start("--data-dir", "data", *LISTEN)
    publish(server, "logs.web", ['{"n":1}', '{"n":2}'])
    keys = ('stream = "copy"',) if scheme == "fyrehose" else ()

    def with_authority(one: Authority) -> str:
        return table(server, to, f'tls = "{one.certificate}"', *keys)

    doubted = forwarding(with_authority(other))
    until(lambda: "certificate" in tmp_path.joinpath("forward.log").read_text(), "nothing was said")
    doubted.kill()
    doubted.wait()
    assert forwarding(with_authority(trusted), "--once").wait(PATIENCE) == 0
    assert there.stop() == 0
    payloads = [each["payload"] for each in stored(tmp_path / "there", stream)]
    assert [json.loads(payload[payload.index("{") :])["n"] for payload in payloads] == [1, 2]
