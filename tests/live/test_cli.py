"""Test ``fyrehose publish`` and ``fyrehose tail`` against a real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_port, free_ports
from tests.live.conftest import FYREHOSE, PATIENCE, ran, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BOTH = (
    *("--listen", "figg=tcp:0:interface=127.0.0.1"),
    *("--listen", "backbone=udp:0:interface=127.0.0.1"),
    *("--listen", "http=tcp:0:interface=127.0.0.1"),
)


class Server:
    """A server, and the commands that connect to it."""

    def __init__(self, start: Any, *words: str) -> None:
        self.start = start
        ports = dict(zip(("figg", "backbone"), free_ports(2), strict=True))
        self.listen = [word.replace(":0:", f":{ports.get(word.partition('=')[0], 0)}:") for word in BOTH]
        self.running = start(*self.listen, *words)

    def again(self, how: signal.Signals) -> None:
        """Stop the server with the signal *how*, and start it again in the same directory."""
        self.running.stop(how)
        self.running = self.start(*self.listen)

    def words(self, command: str, protocol: str, stream: str | None) -> list[str]:
        place = f"127.0.0.1:{self.running.port(protocol)}"
        words = [FYREHOSE, command, "--protocol", protocol, "--to" if command == "publish" else "--from", place]
        return words if stream is None else [*words, "--stream", stream]

    def publish(self, *words: str, protocol: str = "figg", stream: str | None = "backbone", data: bytes = b"") -> str:
        """Run `fyrehose publish`, which must succeed; return its standard error."""
        ended = ran(*self.words("publish", protocol, stream), *words, input=data, text=False)
        assert ended.stdout == b""
        return ended.stderr.decode()

    def tail(self, *words: str, protocol: str = "figg", stream: str | None = "backbone") -> bytes:
        return ran(*self.words("tail", protocol, stream), *words, text=False).stdout


@pytest.fixture
def server(start: Any) -> Server:
    return Server(start)


def everything(server: Server, count: int, **how: Any) -> bytes:
    """Read the stream from its start by Figg and by the backbone, which must agree; return the joined payloads."""
    words = ("--since", "start", "--count", str(count), "--format", "raw")
    by_figg = server.tail(*words)
    assert server.tail(*words, protocol="backbone", stream=None) == by_figg
    return by_figg


def test_lines_published_with_figg_are_tailed_with_two_protocols_after_a_kill(server: Server, tmp_path: Path) -> None:
    lines = Path("/var/log/dpkg.log")
    data = lines.read_bytes() if lines.exists() else b"".join(b"line %d \xff\r\n" % n for n in range(5000))
    log = tmp_path / "log.txt"
    log.write_bytes(data)
    messages = data.removesuffix(b"\n").split(b"\n")
    said = server.publish("--file", str(log))
    assert said.startswith(f"fyrehose: {len(messages):,} messages (")
    assert " published and acknowledged in " in said
    expected = b"".join(messages)
    assert everything(server, len(messages)) == expected
    for how in (signal.SIGTERM, signal.SIGKILL):
        server.again(how)
        assert everything(server, len(messages)) == expected


def test_a_file_larger_than_a_datagram_is_published_as_one_message(server: Server, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(5 << 20))
    server.publish("--whole", str(large), stream="files")
    assert server.tail("--since", "start", "--count", "1", "--format", "raw", stream="files") == large.read_bytes()


def test_messages_come_from_arguments_or_standard_input(server: Server) -> None:
    server.publish("one", "wörld", "")
    server.publish("two words", protocol="backbone", stream=None)
    server.publish(data=b"from\nstandard input\n\xff")
    assert (
        server.tail("--since", "start", "--count", "7")
        == b"one\nw\xc3\xb6rld\n\ntwo words\nfrom\nstandard input\n\xff\n"
    )
    assert server.tail("--since", "5", "--count", "1", protocol="backbone", stream=None) == b"from\n"


def test_tail_writes_json(server: Server) -> None:
    server.publish("text", data=b"")
    server.publish(data=b"\xff\x00\n")
    for protocol, stream in (("figg", "backbone"), ("backbone", None), ("http", "backbone")):
        words = ("--since", "start", "--count", "2", "--format", "json")
        first, second = map(json.loads, server.tail(*words, protocol=protocol, stream=stream).splitlines())
        assert (first["stream"], first["seq"], first["payload"]) == ("backbone", 1, "text")
        assert (second["seq"], second["payload_base64"]) == (2, "/wA=")
        known = {"source", "time", "producer", "producer_seq"} & first.keys()
        assert known == ({"source", "time", "producer", "producer_seq"} if protocol == "http" else set())


@pytest.mark.parametrize(("protocol", "stream"), [("figg", "backbone"), ("backbone", None), ("http", "backbone")])
def test_tail_follows_new_messages(server: Server, protocol: str, stream: str | None) -> None:
    server.publish("before")
    command = [*server.words("tail", protocol, stream), "--count", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # It follows from when it has subscribed, which cannot be seen from outside, so publish until it prints
        # something.
        until(lambda: (server.publish("after"), process.poll())[1] is not None, "tail prints nothing new")
        assert process.stdout is not None
        assert process.stdout.read() == b"after\nafter\nafter\n"
        assert process.returncode == 0


def test_ctrl_c_ends_tail_without_an_error(server: Server) -> None:
    server.publish("one")
    for command in (
        [*server.words("tail", "figg", "backbone"), "--since", "start"],
        [*server.words("tail", "backbone", None), "--since", "start"],
    ):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"one\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
            assert process.stderr.read() == b""


def test_tail_resumes_after_the_server_restarts(server: Server) -> None:
    server.publish("one")
    command = [*server.words("tail", "figg", "backbone"), "--since", "start", "--count", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        server.again(signal.SIGKILL)
        server.publish("two")
        assert process.stdout.readline() == b"two\n"
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("protocol", ["figg", "relink", "http", "eventbus", "backbone"])
@pytest.mark.parametrize("command", ["publish", "tail"])
def test_an_unreachable_server_is_reported_in_one_line_with_status_1(command: str, protocol: str) -> None:
    port = free_port()
    timeout = "2s" if protocol == "backbone" else "60s"
    words = [FYREHOSE, command, "--protocol", protocol, "--timeout", timeout]
    words += [
        "--to" if command == "publish" else "--from",
        f"127.0.0.1:{port}",
        *(["--stream", "s"] if protocol != "backbone" else []),
        *(["x"] if command == "publish" else []),
    ]
    ended = ran(*words, status=1)
    assert ended.stdout == ""
    assert ended.stderr.startswith("fyrehose: ")
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    # UDP has no refusal, so the backbone's client finds out by the timeout.
    assert ("did not answer within 2 s" if protocol == "backbone" else "cannot connect to") in ended.stderr


def test_control_characters_are_escaped_on_a_terminal(server: Server) -> None:
    server.publish(data=b"\x1b]0;owned\x07\xff\n")
    words = [*server.words("tail", "figg", "backbone"), "--since", "start", "--count", "1"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(ours, 1_000)
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert shown == b"\\x1b]0;owned\\x07\\xff\r\n"
    assert server.tail("--since", "start", "--count", "1") == b"\x1b]0;owned\x07\xff\n", "a pipe gets every byte"
