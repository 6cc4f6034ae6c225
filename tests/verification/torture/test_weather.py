"""Check that weather.py notices violations, and that its proxy cuts one node off; `make torture` runs the program."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
load: Any = import_module("cluster_load")
wire: Any = import_module("wire")
proxy: Any = import_module("cluster_proxy")
disks: Any = import_module("cluster_disks")
cluster: Any = import_module("weather")


@pytest.fixture
def figg() -> Any:
    """Return a publisher that has sent five messages, one of them twice, of which three are acknowledged."""
    publisher = load.Figg(1, [1], load.Notes())
    publisher.sent, publisher.acked, publisher.times = 5, 3, {2: 2}
    return publisher


def keep(publisher: Any, *numbers: int) -> None:
    """Record these messages, in this order, as received by a subscriber."""
    first = len(publisher.notes.streams.get("s", ())) + 1
    for at, number in enumerate(numbers, first):
        publisher.notes.message("subscriber", "s", at, wire.payload(1, number, load.LARGEST))


def test_kinds_take_turns_or_are_chosen_by_their_weights() -> None:
    assert cluster.plan(["kill", "stop"], 2, True, Random(1)) == ["kill", "stop", "kill", "stop"]
    chosen = cluster.plan(["kill", "wipe"], 400, False, Random(1))
    assert len(chosen) == 400
    assert 250 < chosen.count("kill") < 390, "the weights are 4 and 1"


def test_acknowledged_messages_that_are_sent_again_are_no_problem(figg: Any) -> None:
    keep(figg, 1, 2, 2, 3, 4)
    assert figg.check(figg.acked) == []
    assert figg.notes.problems == []
    assert figg.was_delivered(3)
    assert not figg.was_delivered(5)


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        ((1, 3), "1 acknowledged messages are LOST, 2 to 2"),
        ((1, 2, 3, 3), "stored more often than sent (number, stored, sent): [(3, 2, 1)]"),
        ((1, 2, 3, 4, 5, 6), "message 6 is stored, but 5 was the last one sent"),
    ],
)
def test_messages_that_are_lost_doubled_or_invented_are_noticed(figg: Any, kept: tuple[int, ...], problem: str) -> None:
    keep(figg, *kept)
    assert figg.check(figg.acked) == [f"figg: {problem}"]


def test_an_event_with_an_identity_that_is_there_twice_is_noticed() -> None:
    publisher = load.Lumberjack(3, [1], load.Notes())
    publisher.sent = publisher.acked = 2
    for at, number in enumerate((1, 2, 2), 1):
        publisher.notes.message("subscriber", "lumberjack", at, wire.event(3, number, load.LARGEST))
    assert publisher.notes.problems == []
    assert publisher.check(2) == ["lumberjack: stored more often than sent (number, stored, sent): [(2, 2, 1)]"]


@pytest.mark.parametrize("other", [b"{", b"{}", b'{"message": 1}', b'{"message": "AAAA"}'])
def test_json_that_no_publisher_sent_has_no_author(other: bytes) -> None:
    sent = wire.event(3, 7, load.LARGEST)
    assert wire.whose(sent, load.SIZES) == (3, 7)
    assert wire.whose(sent.replace(b'"offset": 7', b'"offset": 8'), load.SIZES) is None
    assert wire.whose(other, load.SIZES) is None


def test_a_number_with_two_messages_is_noticed(figg: Any) -> None:
    keep(figg, 1, 2)
    figg.notes.message("another", "s", 2, wire.payload(1, 3, load.LARGEST))
    figg.notes.message("another", "s", 3, b"from nobody")
    assert [problem.split(":")[0] for problem in figg.notes.problems] == ["another", "another"]


@pytest.mark.parametrize(
    ("age", "last", "lies"),
    [("0.500", 2, False), ("0.500", 1, True), ("1.500", 1, False), ("1.500", 0, True), ("3.000", 0, False)],
)
def test_an_answer_that_is_older_than_it_says_is_noticed(age: str, last: int, lies: bool) -> None:
    """Judge an answer that was asked for at 10.0, after records 1 and 2 were acknowledged at 8.0 and 9.0."""
    publisher = load.Http(4, [1], load.Notes())
    publisher.acks, publisher.numbers = [8.0, 9.0], [1, 2]
    ages = load.Ages("a", 1, publisher, publisher.notes)
    ages.judge(10.0, age, str(last))
    assert bool(publisher.notes.problems) is lies
    assert ages.judged == 1


def test_answers_without_an_age_or_a_stream_are_not_judged() -> None:
    publisher = load.Http(4, [1], load.Notes())
    publisher.acks, publisher.numbers = [8.0], [1]
    ages = load.Ages("a", 1, publisher, publisher.notes)
    ages.judge(10.0, "unknown", "0")
    ages.judge(10.0, "0.000", None)
    assert (ages.judged, publisher.notes.problems) == (0, [])


def test_answers_of_a_server_are_judged_while_it_runs() -> None:
    """Let a server answer that it has nothing, and that this is new, after a record was acknowledged."""
    publisher = load.Http(4, [1], load.Notes())
    publisher.acks, publisher.numbers = [0.0], [1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ages = load.Ages("a", listener.getsockname()[1], publisher, publisher.notes)
        ages.start()
        with listener.accept()[0] as peer:
            assert peer.recv(1000).startswith(b"GET /streams/by-http?from=1&limit=1 ")
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nFyrehose-Age: 0.000\r\nFyrehose-Last: 0\r\n\r\n")
            while not ages.judged:
                time.sleep(0.01)
        ages.stop()
    assert "LIES" in publisher.notes.problems[0]


def test_resends_are_counted_while_the_connection_lasts() -> None:
    """Check that messages are compared with what was sent while publishers are connected."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        publisher = load.Figg(1, [listener.getsockname()[1]], load.Notes())
        publisher.start()
        for times in (1, 2, 3):
            with listener.accept()[0] as peer:
                peer.recv(1)
                assert publisher.times.get(1, 1) == times
        publisher.stop()


def test_logs_that_differ_are_noticed(tmp_path: Path) -> None:
    for name, content in (("a", b"0123456789"), ("b", b"012345678"), ("c", b"0123X56789")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:016x}.segment").write_bytes(content)
    assert cluster.compare(tmp_path / "a", tmp_path / "b", 9) == []
    assert "differ" in cluster.compare(tmp_path / "a", tmp_path / "c", 9)[0]
    assert "differ" in cluster.compare(tmp_path / "a", tmp_path / "none", 9)[0]


#: The nodes behind the proxy of the present test.
NODES: list[Echo] = []


class Echo(threading.Thread):
    """A node that answers every message with its name."""

    def __init__(self, node: int) -> None:
        super().__init__(daemon=True)
        self.node, self.listener, self.asked = node, socket.create_server(("127.0.0.1", 0)), 0

    def run(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer:
            while peer.recv(1000):
                self.asked += 1
                peer.sendall(b"n%d" % self.node)


@pytest.fixture
def routes() -> Iterator[Any]:
    nodes = [Echo(node) for node in range(2)]
    for node in nodes:
        node.start()
    made = proxy.Routes([node.listener.getsockname()[1] for node in nodes])
    made.start()
    NODES[:] = nodes
    yield made
    made.stop()
    for node in nodes:
        node.listener.close()


def ask(peer: socket.socket) -> bytes:
    """Return the answer of a node, or nothing if there is none."""
    try:
        peer.sendall(b'INFO {"server_name":"n1"}')
        return peer.recv(1000)
    except OSError:
        return b""


@pytest.mark.parametrize("how", [("closed",), ("mute", "deaf"), ("mute",), ("deaf",)])
@pytest.mark.parametrize("cut", [0, 1])
def test_the_proxy_cuts_a_node_off(routes: Any, cut: int, how: tuple[str, ...]) -> None:
    """Cut off one of two connected nodes, in both directions or in one."""
    with socket.create_connection(("127.0.0.1", routes.ports[0]), timeout=60) as peer:
        assert ask(peer) == b"n0"
        routes.cut(cut, how)
        peer.settimeout(0.5)
        assert ask(peer) == b""
        routes.heal(cut)
        peer.settimeout(60)
        if how != ("closed",):
            assert peer.recv(1000) == b"n0"  # it was kept back, and arrives late
    with socket.create_connection(("127.0.0.1", routes.ports[0]), timeout=60) as peer:
        assert ask(peer) == b"n0"


@pytest.mark.parametrize(("cut", "how", "arrives"), [(0, "deaf", False), (0, "mute", True), (1, "mute", False)])
def test_a_cut_in_one_direction_leaves_the_other_direction_open(routes: Any, cut: int, how: str, arrives: bool) -> None:
    """Let node 1 ask node 0, while data in one direction is kept back."""
    with socket.create_connection(("127.0.0.1", routes.ports[0]), timeout=60) as peer:
        assert ask(peer) == b"n0"
        asked = NODES[0].asked
        routes.cut(cut, [how])
        peer.settimeout(0.5)
        assert ask(peer) == b""
        deadline = time.monotonic() + 60
        while arrives and NODES[0].asked == asked:
            assert time.monotonic() < deadline, "nothing arrives"
            time.sleep(0.01)
        assert (NODES[0].asked > asked) is arrives
        routes.heal(cut)
        peer.settimeout(60)
        assert peer.recv(1000) == b"n0"


def test_the_proxy_delays_what_nodes_send(routes: Any) -> None:
    with socket.create_connection(("127.0.0.1", routes.ports[0]), timeout=60) as peer:
        assert ask(peer) == b"n0"
        routes.delay(0.2)
        began = time.monotonic()
        assert ask(peer) == b"n0"
        assert time.monotonic() - began >= 0.4, "there and back"
        routes.delay(0)


#: A program that prints how long each sync of a file takes, until it is killed.
SYNCS = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    while True:
        file.write(b"x")
        began = time.monotonic()
        os.fdatasync(file.fileno())
        print(time.monotonic() - began, flush=True)
"""


@pytest.fixture
def syncing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that syncs a file all the time."""
    if shutil.which("strace") is None:
        pytest.skip("a program of others is not installed: apt-get install strace")
    with subprocess.Popen(
        [sys.executable, "-c", SYNCS, tmp_path / "file"], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_each_sync_of_a_slow_disk_is_delayed(syncing: Any, tmp_path: Path) -> None:
    slow = disks.SlowDisk(syncing.pid, 0.3, tmp_path / "syncs")
    while float(syncing.stdout.readline()) < 0.3:  # until the first sync that began on the slow disk
        pass
    assert float(syncing.stdout.readline()) >= 0.3
    assert slow.stop() >= 2
    while float(syncing.stdout.readline()) >= 0.3:
        pass  # until the disk is fast again; otherwise the test times out


def test_a_slow_disk_ends_in_order_when_its_process_was_killed(syncing: Any, tmp_path: Path) -> None:
    slow = disks.SlowDisk(syncing.pid, 0.01, tmp_path / "syncs")
    # The first lines may be of syncs before, which waited in the pipe.
    while b"(DELAYED)" not in (tmp_path / "syncs").read_bytes():
        syncing.stdout.readline()
    syncing.kill()
    syncing.wait()
    assert slow.stop() >= 1
    with pytest.raises(RuntimeError, match="strace cannot trace process"):
        disks.SlowDisk(syncing.pid, 0.01, tmp_path / "more")


@pytest.mark.parametrize(("syncs", "problems"), [([0, 3], []), ([0, 0], ["no sync was delayed on 2 slow disks"])])
def test_slow_disks_that_delayed_nothing_are_noticed(syncs: list[int], problems: list[str]) -> None:
    weather = SimpleNamespace(slow_disks=2, slow_syncs=syncs, problems=[])
    cluster.Weather.check_slow_disks(weather)
    assert weather.problems == problems


def test_the_first_election_after_a_fault_is_found_in_the_logs_of_nats(tmp_path: Path) -> None:
    line = "[7] 2026/11/30 06:20:{:09.6f} [INF] JetStream cluster new stream leader for '$G > {}'\n"
    logs = ((10, "FYREHOSE_fyrehose"), (31.25, "FYREHOSE_fyrehose")), ((22, "other"), (24.5, "FYREHOSE_fyrehose"))
    for node, lines in enumerate(logs):
        folder = tmp_path / f"nats-{node}"
        folder.mkdir()
        folder.joinpath("log").write_text("".join(line.format(second, stream) for second, stream in lines))
    weather = SimpleNamespace(nats=SimpleNamespace(directory=tmp_path, count=2))
    minute = datetime(2026, 11, 30, 6, 20).timestamp()
    assert cluster.Weather.elected(weather, minute + 20) == {"election": 4.5}
    assert cluster.Weather.elected(weather, minute + 40) == {}


def test_the_table_of_outages_shows_elections_apart() -> None:
    rounds = [("cut", {"all": 5.0, "http": 6.0, "election": 4.0}), ("cut", {"all": 7.0, "http": 7.5, "election": 6.0})]
    lines = cluster.table([*rounds, ("kill", {"all": 1.0, "http": 1.5})])
    assert lines[1:] == [
        "| cut | 2 | 6.0 s | 7.0 s | 7.0 s | 6.8 s | 7.5 s | 2: 5.0 s |",
        "| kill | 1 | 1.0 s | 1.0 s | 1.0 s | 1.5 s | 1.5 s |  |",
    ]


def test_without_strace_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        cluster.main(["--kinds", "kill,slow"])
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("slow-disk and double need strace: run `apt-get install strace`, or leave them out of --kinds")
    )
