"""Test ``twistd fyrehose`` as a process: what it logs, what it stores, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import PATIENCE, listening, ran, until
from tests.live.networks import Network

pytestmark = [pytest.mark.live, pytest.mark.slow]

#: Of tests about the start or the end of a process, which must be that of a new interpreter.
REAL = pytest.mark.usefixtures("real_programs")

TWISTD = Path(sys.executable).with_name("twistd")
LINES = "lines=tcp:0:interface=127.0.0.1"


def connect(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


def publish(port: int, *payloads: bytes) -> None:
    """Publish lines, and wait until all of them are acknowledged."""
    with connect(port) as peer:
        peer.sendall(b"".join(b"+log %b\n" % payload for payload in payloads))
        answers = b""
        while answers.count(b"\n") < len(payloads):
            answers += peer.recv(1 << 16)


def kept(port: int, count: int) -> list[bytes]:
    """Return the first ``count`` messages of the stream."""
    with connect(port) as peer, peer.makefile("rb") as stream:
        peer.sendall(b"?log 0\n")
        found = []
        for n in range(1, count + 1):
            seq, size = map(int, stream.readline().split())
            assert seq == n
            found.append(stream.read(size + 1)[:-1])
    return found


@REAL
def test_a_start_logs_each_listener_and_a_stop_has_status_0(start: Any) -> None:
    server = start("--listen", LINES, "--listen", "backbone=udp:0:interface=127.0.0.1", "--durability", "interval:50")
    assert "journal in " + str(server.directory / "data") in server.log
    assert "durability interval:50: acknowledged messages are in the kernel" in server.log
    assert "journal: new" in server.log
    assert server.port("lines")
    assert server.port("backbone")
    assert server.directory.joinpath("twistd.pid").exists()
    assert server.stop() == 0
    assert server.errors == ""
    assert "stopping: SIGTERM" in server.log
    assert not server.directory.joinpath("twistd.pid").exists()


@REAL
def test_twistd_finds_the_plugin_from_any_directory(tmp_path: Path) -> None:
    said = ran(TWISTD, "--help", cwd=tmp_path).stdout
    assert "fyrehose         A durable message server: many protocols, one journal." in said


@REAL
def test_without_options_every_plugin_listens(start: Any) -> None:
    """The server has a network of its own, because another one may use the default ports."""
    from fyrehose import plugins

    network = Network.make()
    try:
        server = start(command=network.inside)
        for name in plugins.names():
            assert f"{name} ({plugins.load(name).default_endpoint}) listens on 127.0.0.1:" in server.log
        assert server.stop() == 0
    finally:
        network.end()


#: A command that runs ``fyrehose serve`` where the fixture starts twistd.
SERVE = (
    sys.executable,
    "-c",
    "import sys; from fyrehose.cli import main; sys.argv[:] = ['fyrehose', 'serve', *sys.argv[2:]]; main()",
)


def test_fyrehose_serve_runs_the_same_server(start: Any) -> None:
    server = start("--listen", LINES, command=SERVE, before=(), name=())
    publish(server.port("lines"), b"one")
    assert not list(server.directory.glob("*.pid"))
    assert server.stop() == 0
    assert server.errors == ""
    server = start("--listen", LINES, command=SERVE, before=(), name=())
    assert kept(server.port("lines"), 1) == [b"one"]


def get(url: str, timeout: float = PATIENCE) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a GET."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_draining_server_serves_everything_until_it_stops(start: Any) -> None:
    server = start(*listening("lines", "admin", "http"), "--option", "server.drain=1h")
    admin = f"http://127.0.0.1:{server.port('admin')}"
    assert get(f"{admin}/ready")[0] == 200
    reader = urllib.request.urlopen(f"http://127.0.0.1:{server.port('http')}/streams/log/live", timeout=PATIENCE)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: /ready says 503")
    assert get(f"{admin}/ready")[0] == 503
    assert get(f"{admin}/health")[0] == 200
    publish(server.port("lines"), b"while it drains")
    assert kept(server.port("lines"), 1) == [b"while it drains"]
    assert server.stop() == 0, "a second signal"
    events = reader.read()
    assert b"while it drains" in events
    assert b"event: ended\ndata: " in events


#: A program that runs ``fyrehose serve`` with a plugin whose messages "sleep" and "compute" occupy the reactor for
#: seconds; the latter by a single call in C, during which no other thread runs.
STALLING = """
import sys, time
from fyrehose.cli import main
from lines.server import LineProtocol
from lines.session import Published

def published(self, event):
    if event.payload == b"sleep":
        time.sleep(4)
    elif event.payload == b"compute":
        began = time.thread_time()
        size = 1_000_000
        while (took := time.thread_time() - began) < 0.25:
            began = time.thread_time()
            sum(range(size := 2 * size))
        sum(range(int(size * 4 / took)))  # 4 seconds; 2 if the processor has become twice as fast
    LineProtocol.published(self, event)

LineProtocol.handlers = {**LineProtocol.handlers, Published: published}
sys.argv[:] = ["fyrehose", "serve", *sys.argv[2:]]
main()
"""


def test_a_stalled_reactor_is_logged_with_its_stack_and_peer_and_counted(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        words = ("--listen", LINES, "--listen", "admin=tcp:0:interface=127.0.0.1", "--option", "server.drain=0s")
        server = start(*words, command=(sys.executable, "-c", STALLING), before=(), name=())
        admin = f"http://127.0.0.1:{server.port('admin')}"
        assert json.loads(get(f"{admin}/health")[1])["stalls"] == 0
        assert manager.recv(1000).splitlines()[1] == b"STATUS=serving"
        with connect(server.port("lines")) as peer:
            address = f"127.0.0.1:{peer.getsockname()[1]}"
            for count, call in enumerate(("sleep", "compute"), 1):
                peer.sendall(b"+log %b\n" % call.encode())
                assert receive(peer, 4)
                health = json.loads(get(f"{admin}/health")[1])
                assert (health["ok"], health["stalls"]) == (True, count)
                assert health["longest_turn"] > 2
                stalled = 0  # the status is sent again when the turn takes twice as long
                while (status := manager.recv(1000)) != b"STATUS=serving":
                    stalled += 1
                    said = rb"STATUS=a turn of the reactor takes more than \d+ s, serving lines " + address.encode()
                    assert re.fullmatch(said, status)
                assert stalled or call == "compute"  # the watching thread may run too late to see the call in C
        assert f"fyrehose_reactor_stalls_total {2.0}" in get(f"{admin}/metrics")[1].decode()
    first, _, rest = server.log.partition("a turn of the reactor took ")
    assert f"a turn of the reactor takes more than 2 s, serving lines {address}; nobody else is served" in first
    assert ", in published\n" in first, "the stack"
    assert "a turn of the reactor took " in rest
    assert server.stop() == 0


@REAL
def test_aborted_server_writes_the_stacks_of_its_threads(start: Any) -> None:
    """systemd aborts a server whose reactor hangs."""
    server = start("--listen", LINES)
    assert server.stop(signal.SIGABRT) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in server.errors
    assert "watchdog.py" in server.errors
    assert " in mainLoop" in server.errors


@REAL
def test_ctrl_c_stops_the_server_in_order(start: Any) -> None:
    # A process in the background ignores SIGINT, and so would its children, so restore the default.
    command = (
        sys.executable,
        "-c",
        "import os,signal,sys; signal.signal(2, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])",
    )
    server = start("--listen", LINES, command=command)
    assert server.stop(signal.SIGINT) == 0
    assert not server.directory.joinpath("twistd.pid").exists()


def test_shutdown_acknowledges_accepted_messages_despite_repeated_signals(start: Any) -> None:
    server = start("--listen", LINES)
    with connect(server.port("lines")) as peer:
        peer.sendall(b"+log x\n" * 20_000)
        answers = receive(peer, 5)
        for _ in range(3):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        while more := peer.recv(1 << 16):
            answers += more
    assert server.ended() == 0
    acknowledged = answers.count(b"\n")
    assert answers.endswith(b"\n")
    server = start("--listen", LINES)
    assert len(kept(server.port("lines"), acknowledged)) == acknowledged


def one_line(errors: str) -> str:
    assert errors.startswith("twistd fyrehose: ")
    assert errors.count("\n") == 1
    return errors


def test_180_simultaneous_connections_fit_into_the_backlog(start: Any) -> None:
    """A connection beyond the backlog would be repeated by its kernel only after a second."""
    server = start("--listen", "figg=tcp:0:interface=127.0.0.1")
    port = server.port("figg")
    server.process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    peers = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(180)]
    waiting = Path("/proc/net/tcp").read_text()
    server.process.send_signal(signal.SIGCONT)
    (line,) = [
        line.split() for line in waiting.splitlines() if line.split()[1].endswith(f":{port:04X}") and " 0A " in line
    ]
    assert int(line[4].partition(":")[2], 16) == len(peers), "they were all let in before anybody accepted them"
    for peer in peers:
        peer.close()


def test_a_journal_that_is_in_use_ends_the_start(start: Any) -> None:
    first = start("--listen", LINES)
    second = start("--listen", LINES, ready=False, before=("-n", "--pidfile", "second.pid"))
    assert second.ended() == 5
    assert f"is in use by another process (pid {first.process.pid})" in one_line(second.errors)
    assert first.process.poll() is None


#: A program that runs twistd on a disk whose calls fail as the names of files in its directory say.
REFUSING = """
import errno, os, sys
os.environ["FYREHOSE_PURE"] = "1"  # the native kernel writes and syncs without these functions
def unless(name, error, function):
    def call(*args):
        if os.path.exists(name):
            raise OSError(error, os.strerror(error))
        return function(*args)
    return call
os.fdatasync = unless("refuse-sync", errno.EIO, os.fdatasync)
os.pwrite = unless("refuse-write", errno.ENOSPC, os.pwrite)
sys.argv = sys.argv[1:]
from twisted.scripts.twistd import run
run()
"""


def test_a_failed_sync_ends_the_server_without_an_acknowledgement(start: Any) -> None:
    server = start("--listen", LINES, command=(sys.executable, "-c", REFUSING))
    publish(server.port("lines"), b"kept")
    server.directory.joinpath("refuse-sync").touch()
    with connect(server.port("lines")) as peer:
        peer.sendall(b"+log lost\n+log lost\n")
        with suppress(ConnectionResetError):  # the server may end before it has read the second line
            assert receive(peer, 1) == b"", "nothing is acknowledged"
    assert server.ended() == 4
    assert "Input/output error" in one_line(server.errors)
    assert not server.directory.joinpath("twistd.pid").exists()
    server = start("--listen", LINES)
    assert kept(server.port("lines"), 1) == [b"kept"]


@REAL
def test_daemon_logs_to_a_new_file_after_its_log_was_moved(start: Any) -> None:
    """Like logrotate: with `create` a new file already exists, without it there is none."""
    before = ("--pidfile", "daemon.pid", "--logfile", "daemon.log")
    parent = start("--data-dir", "data", "--listen", LINES, before=before, ready=False)
    assert parent.ended() == 0
    log, moved, again = (parent.directory / name for name in ("daemon.log", "daemon.log-1", "daemon.log-2"))
    until(lambda: "serving" in log.read_text())
    pid = int(parent.directory.joinpath("daemon.pid").read_text())
    try:
        log.rename(moved)
        os.kill(pid, signal.SIGUSR1)
        until(log.exists)
        os.kill(pid, signal.SIGHUP)
        until(lambda: "reloaded" in log.read_text())
        log.rename(again)
        log.touch(0o644)
        os.kill(pid, signal.SIGUSR1)
        until(lambda: str(log) in [os.path.realpath(each) for each in Path(f"/proc/{pid}/fd").iterdir()])
        os.kill(pid, signal.SIGHUP)
        until(lambda: "reloaded" in log.read_text())
        assert "reloaded" not in moved.read_text()
        assert again.read_text().count("reloaded") == 1
        assert {path.stat().st_mode & 0o777 for path in (log, moved, again)} == {moved.stat().st_mode & 0o777}
    finally:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not parent.directory.joinpath("daemon.pid").exists())
    assert not parent.directory.joinpath("daemon.log.1").exists()
