#!/usr/bin/env python3
"""Kill a server and its standby again and again with ``kill -9``, and check that the standby has the same log.

    standby_kill.py [--kills N] [--seed S] [--directory DIR]

Messages are published by HTTP to a server all the time, `fyrehose journal serve` serves its journal, and `fyrehose
journal follow` keeps a standby.  After a random time one of the three is killed, and started again.  After each kill,
the bytes of the standby below its durable mark must equal those of the server's journal, and must not exceed what is
durable there.  Then all run undisturbed, and the time from an acknowledgement until the standby has the message is
measured.  Last, the standby is killed, and the server a moment later.  The standby is promoted and served: it must have
every message below its mark, and must give new messages numbers that were never acknowledged before.

The exit status is 1 if anything is wrong; then the directory is kept.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import servers

from fyrehose.journal import scan
from fyrehose.offline.dump import runs
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look

FYREHOSE = str(Path(sys.executable).with_name("fyrehose"))
SMALL = ("--option", "journal.segment-size=256K", "--option", "journal.min-free=1M")
STREAMS = ("a", "b")
JSON_LINES = {"Content-Type": "application/x-ndjson"}


class Load:
    """Publishes to each stream from a thread of its own, even while the server is down.

    :ivar acknowledged: the acknowledged message of each number, by stream
    """

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.acknowledged: dict[str, dict[int, str]] = {stream: {} for stream in STREAMS}
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(name, random.Random(seed))) for name in STREAMS]
        for thread in self.threads:
            thread.start()

    def run(self, stream: str, dice: random.Random) -> None:
        number = 0
        while not self.ended.is_set():
            count = dice.choice((1, 5, 40))
            lines = [f"{stream} {number + i} {'.' * dice.choice((10, 300))}" for i in range(count)]
            number += count  # messages that fail are not sent again
            try:
                last = publish(self.port, stream, lines)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            for i, line in enumerate(lines):
                self.acknowledged[stream][last - count + 1 + i] = line
            time.sleep(0.01)

    def stop(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(servers.PATIENCE)


def publish(port: int, stream: str, lines: list[str]) -> int:
    """Publish the *lines*; return the number of the last message."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=servers.PATIENCE)
    try:
        connection.request("POST", f"/streams/{stream}", "".join(f"{line}\n" for line in lines).encode(), JSON_LINES)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise OSError(said.decode())
        return int(json.loads(said)["last"])
    finally:
        connection.close()


class Scene:
    """The server, `journal serve` and `journal follow`, and how to start each of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data, self.standby = directory / "server" / "data", directory / "standby"
        self.ports = servers.free_ports(("http", "serve"))
        self.start_server()
        self.serving = self.start("serve", str(self.data), "--listen", f"127.0.0.1:{self.ports['serve']}")
        self.following = self.follow()

    def start_server(self) -> None:
        self.server = servers.Server(self.directory / "server", *SMALL, ports={"http": self.ports["http"]})
        self.server.wait_until_serving()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen([FYREHOSE, "journal", *words], stdout=log, stderr=log)

    def follow(self) -> subprocess.Popen[bytes]:
        return self.start("follow", f"http://127.0.0.1:{self.ports['serve']}", str(self.standby))

    def disturb(self, victim: str) -> None:
        """Kill one of the three processes, and start it again."""
        if victim == "server":
            self.server.kill()
            self.start_server()
        elif victim == "serve":
            end(self.serving)
            self.serving = self.start("serve", str(self.data), "--listen", f"127.0.0.1:{self.ports['serve']}")
        else:
            end(self.following)
            self.following = self.follow()

    def wait_until_complete(self, position: int) -> None:
        deadline = time.monotonic() + servers.PATIENCE
        while not self.standby.exists() or look(self.standby).mark < position:
            if self.following.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the standby does not reach position {position}: {self.directory / 'follow.log'}")
            time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(servers.PATIENCE)


def differences(data: Path, standby: Path) -> list[str]:
    """Compare the standby's bytes below its mark with the server's journal; return the differences."""
    if not standby.exists():
        return []
    copied = look(standby)
    mark = look(data).mark
    found = [f"the standby has {copied.mark}, and only {mark} is durable"] if copied.mark > mark else []
    for extent in copied.segments:
        size = extent.end - extent.base
        first, second = (read(scan.path_of(directory, extent.base), size) for directory in (data, standby))
        if first != second:
            found.append(f"the segment at {extent.base} differs")
    return found


def read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def lags(scene: Scene, count: int) -> list[float]:
    """Measure *count* times how long it takes until the standby has an acknowledged message, in seconds."""
    found = []
    for _ in range(count):
        publish(scene.ports["http"], "lag", ["x"])
        began = time.monotonic()
        scene.wait_until_complete(look(scene.data).mark)
        found.append(time.monotonic() - began)
        time.sleep(random.random() / 4)
    return found


def promoted(scene: Scene, load: Load) -> list[str]:
    """Promote the standby, and check it; return the problems."""
    subprocess.run([FYREHOSE, "journal", "promote", str(scene.standby)], check=True, timeout=servers.PATIENCE)
    found = [str(problem) for problem in verify(scene.standby).problems]
    has: dict[str, dict[int, str]] = {}
    for stream in STREAMS:
        each = (pair for run in runs(scene.standby, stream) for pair in enumerate(run.payloads(), run.first_seq))
        has[stream] = {seq: bytes(payload).decode() for seq, payload in each}
    lost = 0
    for stream, messages in load.acknowledged.items():
        end = max(has[stream], default=0)
        lost += sum(seq > end for seq in messages)
        found += [
            f"{stream} {seq} is {has[stream].get(seq)!r} and not {line!r}"
            for seq, line in messages.items()
            if seq <= end and has[stream].get(seq) != line
        ]
    server = servers.Server(scene.directory / "promoted", "--data-dir", str(scene.standby), *SMALL, ports={"http": 0})
    server.wait_until_serving()
    try:
        port = server.port("http")
        for stream, messages in load.acknowledged.items():
            url = f"http://127.0.0.1:{port}/streams/{stream}?from=1&limit=1"
            said = subprocess.run(["curl", "-sf", url], capture_output=True, check=False, timeout=servers.PATIENCE)
            if f"{stream} 0 ".encode() not in said.stdout:
                found.append(f"{url} answers {said.stdout!r} (status {said.returncode})")
            if (seq := publish(port, stream, ["first of the new lineage"])) <= max(messages):
                found.append(f"number {seq} of {stream} is used twice")
    finally:
        server.kill()
    total = sum(map(len, load.acknowledged.values()))
    print(f"promoted: {total - lost:,} of {total:,} acknowledged messages, {lost:,} lost in the last moment")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=servers.directory)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-standby-kill-"))
    scene = Scene(directory)
    load = Load(scene.ports["http"], args.seed)
    problems: list[str] = []
    kinds: Counter[str] = Counter()
    try:
        for _ in range(args.kills):
            time.sleep(dice.random() * 1.5)
            victim = dice.choice(("server", "serve", "follow"))
            scene.disturb(victim)
            kinds[victim] += 1
            problems += differences(scene.data, scene.standby)
        scene.wait_until_complete(look(scene.data).mark)
        found = lags(scene, 20)
        print(f"lag: median {statistics.median(found):.2f} s, at most {max(found):.2f} s")
        end(scene.following)
        time.sleep(0.3)
        scene.server.kill()
        end(scene.serving)
        load.stop()
        problems += differences(scene.data, scene.standby) + promoted(scene, load)
    finally:
        load.stop()
        for process in (scene.server.process, scene.serving, scene.following):
            end(process)
    print(f"{args.kills} kills: {dict(kinds)}; {len(problems)} problems")
    for problem in problems[:20]:
        print(problem)
    return servers.verdict(bool(problems), directory)


if __name__ == "__main__":
    sys.exit(main())
