"""Test a public server: TLS with client certificates and a policy, which are both read again while it runs."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from fyrehose.protocols.figg.frames import Ack, Attach, Attached, DataRun, Ping, Pong, Publish
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.testing.certificates import Authority, Issued
from tests.live.conftest import PATIENCE, fyrehose, ran

pytestmark = [pytest.mark.live, pytest.mark.slow]

WRITER = '[[allow]]\ncertificate = "writer"\npublish = "logs.*"\n'
READER = '[[allow]]\ncertificate = "reader"\nsubscribe = "logs.*"\n'


class Client:
    """A Figg client with hand-made bytes."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        plain = socket.create_connection((host, port), timeout=PATIENCE)
        with ExitStack() as failing:
            failing.callback(plain.close)
            self.socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
            failing.pop_all()
        self.session = FiggClientSession()
        self.heard: list[Any] = []

    def ask(self, frame: Any) -> Any:
        """Send ``frame``; return the server's answer, or None if it closes the connection instead."""
        try:
            self.socket.sendall(frame.serialize())
        except (ConnectionError, ssl.SSLError):
            return None
        return self.hear()

    def hear(self) -> Any:
        while not self.heard:
            try:
                data = self.socket.recv(1 << 16)
            except (ConnectionError, ssl.SSLError):
                data = b""
            if not data:
                # Otherwise the server keeps the connection for a while, and counts it for this address.
                self.socket.close()
                return None
            for event in self.session.receive_data(data):
                self.heard.append(bytes(event.payload) if isinstance(event, DataRun) else event)
        return self.heard.pop(0)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def connecting(*args: Any, **more: Any) -> Client:
        made.append(Client(*args, **more))
        return made[-1]

    yield connecting
    for client in made:
        client.socket.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Authority(directory)


def trusting(authority: Authority, own: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def secured(authority: Authority, tmp_path: Path, policy: str, *words: str) -> list[str]:
    """Return the options of a server that requires client certificates."""
    own = authority.issue("server", "localhost")
    tmp_path.joinpath("server.pem").write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    tmp_path.joinpath("policy.toml").write_text(policy)
    options = {
        "tls-certificate": tmp_path / "server.pem",
        "tls-authorities": authority.certificate,
        "tls-client-auth": "required",
    }
    return [
        *("--listen", "figg=tcp:0", "--policy", str(tmp_path / "policy.toml"), *words),
        *(word for name, value in options.items() for word in ("--option", f"figg.{name}={value}")),
    ]


def test_peers_do_what_the_policy_allows_and_refusals_are_logged_with_reasons(
    start: Any, connect: Any, authority: Authority, tmp_path: Path
) -> None:
    server = start(*secured(authority, tmp_path, WRITER + READER))
    port = server.port("figg")
    writer, reader, stranger = (trusting(authority, authority.issue(name)) for name in ("writer", "reader", "boss"))
    assert connect(port, writer).ask(Publish(topic="logs.web", number=1, data=b"hello")) == Ack(number=1)
    following = connect(port, reader)
    assert following.ask(Attach(topic="logs.web", offset=0)) == Attached(topic="logs.web", offset=0)
    assert following.hear() == b"hello"
    assert connect(port, writer).ask(Attach(topic="logs.web", offset=0)) is None
    server.wait_for("127.0.0.1 (certificate 'writer') may not read stream 'logs.web'")
    while "no rule of the policy lets 127.0.0.1 (certificate 'boss') publish or read anything" not in server.log:
        # the server logs at most one such line a second
        assert connect(port, stranger).ask(Publish(topic="logs.web", number=1, data=b"hello")) is None
    assert connect(port, trusting(authority)).ask(Ping(number=1)) is None
    server.wait_for("figg: handshake-failed from 127.0.0.1: peer did not return a certificate\n")
    old = trusting(authority, authority.issue("writer"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    while "unsupported protocol" not in server.log:
        with suppress(ssl.SSLError, ConnectionError):
            connect(port, old)
    assert server.stop() == 0


def test_policy_and_certificates_are_read_again(start: Any, connect: Any, authority: Authority, tmp_path: Path) -> None:
    server = start(*secured(authority, tmp_path, WRITER + READER))
    port = server.port("figg")
    writer, reader = (trusting(authority, authority.issue(name)) for name in ("writer", "reader"))
    following, writing = connect(port, reader), connect(port, writer)
    following.ask(Attach(topic="logs.web", offset=0))
    assert writing.ask(Publish(topic="logs.web", number=1, data=b"one")) == Ack(number=1)
    assert following.hear() == b"one"

    # An invalid policy changes nothing.
    tmp_path.joinpath("policy.toml").write_text("[[allow]")
    server.reload()
    server.wait_for("nothing was changed: invalid --policy ")
    assert following.ask(Ping(number=7)) == Pong(number=7)

    # The new policy does not name the reader, and the new server certificate is of another authority.
    tmp_path.joinpath("policy.toml").write_text(WRITER)
    directory = tmp_path / "others"
    directory.mkdir()
    other = Authority(directory, "other")
    own = other.issue("server", "localhost")
    tmp_path.joinpath("server.pem").write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    server.reload()
    server.wait_for("the policy has ended 1 subscription")
    assert following.hear() is None
    assert writing.ask(Publish(topic="logs.web", number=2, data=b"two")) == Ack(number=2), "the writer was disconnected"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(port, writer)
    writer.load_verify_locations(other.certificate)
    assert connect(port, writer).ask(Publish(topic="logs.web", number=1, data=b"three")) == Ack(number=1)
    assert server.stop() == 0


def test_publish_and_tail_work_over_tls(start: Any, authority: Authority, tmp_path: Path) -> None:
    server = start(*secured(authority, tmp_path, WRITER + READER))
    to = f"localhost:{server.port('figg')}"

    def run(name: str | None, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        own = authority.issue(name) if name else None
        files = [authority.certificate, *([own.certificate, own.key] if own else [])]
        return fyrehose(*words, "--tls", ",".join(files), status=status)

    assert run("writer", "publish", "--to", to, "--stream", "logs.web", "hello").stdout == ""
    read = run("reader", "tail", "--from", to, "--stream", "logs.web", "--since", "start", "--count", "1")
    assert read.stdout == "hello\n"
    said = run(None, "publish", "--to", to, "--stream", "logs.web", "--timeout", "1s", "hello", status=1)
    assert said.stderr.startswith("fyrehose: ")
    server.wait_for("handshake-failed from 127.0.0.1")
    assert server.stop() == 0


def test_the_commands_of_the_security_page_run(start: Any, tmp_path: Path) -> None:
    """Run the commands for certificates, the server with them, and a client."""
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    (certificates,) = re.findall(r"```sh\n(openssl.*?)```", page, re.DOTALL)
    ran("sh", "-eu", "-c", certificates, cwd=tmp_path)
    (policy,) = re.findall(r"```toml\n(\[\[allow\]\].*?)```", page, re.DOTALL)
    tmp_path.joinpath("policy.toml").write_text(policy)
    section = page.partition("## TLS")[2].partition("\n## ")[0].replace("\\\n", " ")
    (serving,) = re.findall(r"fyrehose serve (.*)", section)
    server = start(*serving.replace("tcp:8119", "tcp:0").split())
    (publishing,) = re.findall(r"fyrehose (publish .*)", section)
    fyrehose(*shlex.split(publishing.replace("8119", str(server.port("figg")))), cwd=tmp_path)
    (looking,) = re.findall(r"(openssl s_client .*)", section)
    words = shlex.split(looking.replace("8119", str(server.port("figg"))))
    assert "Verify return code: 0 (ok)" in ran(*words, status=None, cwd=tmp_path, input="").stdout
    assert server.stop() == 0


def test_a_command_reports_a_server_certificate_that_it_cannot_verify(
    start: Any, authority: Authority, tmp_path: Path
) -> None:
    server = start(*secured(authority, tmp_path, READER))
    (tmp_path / "other").mkdir()
    place = f"localhost:{server.port('figg')}"
    for trusted, wrong in (
        (Authority(tmp_path / "other").certificate, "certificate verify failed"),
        (authority.certificate, "certificate required"),
    ):
        said = fyrehose("tail", "--from", place, "--tls", trusted, "--stream", "s", status=1)
        assert said.stderr.startswith(f"fyrehose: TLS handshake with figg at {place} failed: ")
        assert wrong in said.stderr
        assert said.stderr.count("\n") == 1


#: A program that starts its arguments with a public listening socket, as a systemd socket unit does.
PASSING = (
    "import os, socket, sys; listening = socket.create_server(('0.0.0.0', 0));"
    "os.dup2(listening.fileno(), 3); os.set_inheritable(3, True);"
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='figg');"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_socket_of_systemd_without_a_policy_refuses_strangers(start: Any, connect: Any) -> None:
    server = start("--listen", "figg=systemd:domain=INET:name=figg", command=(sys.executable, "-c", PASSING))
    port = server.port("figg")
    assert connect(port).ask(Publish(topic="s", number=1, data=b"x")) == Ack(number=1)
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    others = [address for address in addresses if not address.startswith("127.")]
    if others:
        assert connect(port, host=others[0]).ask(Publish(topic="s", number=1, data=b"x")) is None
        server.wait_for(f"{others[0]} may not publish into stream 's': without --policy FILE only clients")
    assert server.stop() == 0


def test_a_service_manager_is_notified_and_the_log_is_in_json(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        server = start("--listen", f"figg=unix:{tmp_path / 'figg'}", "--log-format", "json", ready=False)
        assert manager.recv(1000).splitlines()[0] == b"READY=1"
        for _ in range(3):
            assert manager.recv(1000) == b"WATCHDOG=1"
        server.process.send_signal(signal.SIGHUP)
        told = b""
        while not told.startswith(b"RELOADING=1"):
            told = manager.recv(1000)
        server.process.send_signal(signal.SIGTERM)
        while not told.startswith(b"STOPPING=1"):
            told = manager.recv(1000)
        assert told == b"STOPPING=1\nSTATUS=draining"
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    messages = [line["message"] for line in lines if line["module"] == "fyrehose.server.tap"]
    assert messages[-2] == "reloaded"
    assert messages[-1].startswith("draining: /ready says 503, and the server stops in 10 s")
    assert "Server Shut Down." in [line["message"] for line in lines]
    assert all({"time", "level", "module", "message"} <= line.keys() for line in lines)
    listens = next(line for line in lines if "listens on" in line["message"])
    assert (listens["module"], listens["level"]) == ("fyrehose.server.service", "info")
    assert server.errors == ""
