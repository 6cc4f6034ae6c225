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

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kills
import servers

from fyrehose.journal import scan
from fyrehose.offline.dump import runs
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look

SMALL = ("--option", "journal.segment-size=256K", "--option", "journal.min-free=1M")
STREAMS = ("a", "b")


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
            except kills.LOST:
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
    body = "".join(f"{line}\n" for line in lines).encode()
    status, said = kills.ask(port, "POST", f"/streams/{stream}", body, Content_Type="application/x-ndjson")
    if status != 200:
        raise OSError(said.decode())
    return int(json.loads(said)["last"])


class Scene:
    """The server, `journal serve` and `journal follow`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data, self.standby = directory / "server" / "data", directory / "standby"
        ports = servers.free_ports(("http", "serve"))
        self.port, at = ports.pop("http"), f"127.0.0.1:{ports['serve']}"
        self.server = kills.Serving(directory / "server", *SMALL, ports={"http": self.port})
        self.serving = self._journal("serve", self.data, "--listen", at)
        self.following = self._journal("follow", f"http://{at}", self.standby)

    def _journal(self, *words: Any) -> kills.Program:
        return kills.Program(words[0], [kills.FYREHOSE, "journal", *words], self.directory / f"{words[0]}.log")

    def wait_until_complete(self, position: int) -> None:
        kills.wait_for(
            f"the standby reaches position {position}; see {self.following.log}",
            lambda: self.standby.exists() and look(self.standby).mark >= position,
        )


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
        publish(scene.port, "lag", ["x"])
        began = time.monotonic()
        scene.wait_until_complete(look(scene.data).mark)
        found.append(time.monotonic() - began)
        time.sleep(random.random() / 4)
    return found


def promoted(scene: Scene, load: Load) -> list[str]:
    """Promote the standby, and check it; return the problems."""
    subprocess.run([kills.FYREHOSE, "journal", "promote", str(scene.standby)], check=True, timeout=servers.PATIENCE)
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
            status, said = kills.ask(port, "GET", f"/streams/{stream}?from=1&limit=1")
            if status != 200 or f"{stream} 0 ".encode() not in said:
                found.append(f"the first record of {stream} is answered with {status}: {said!r}")
            if (seq := publish(port, stream, ["first of the new lineage"])) <= max(messages):
                found.append(f"number {seq} of {stream} is used twice")
    finally:
        server.kill()
    total = sum(map(len, load.acknowledged.values()))
    print(f"promoted: {total - lost:,} of {total:,} acknowledged messages, {lost:,} lost in the last moment")
    return found


def main() -> int:
    args = kills.parser_of(__doc__, kills=30).parse_args()
    scene = Scene(directory := kills.root_of(args, "standby-kill"))
    load = Load(scene.port, args.seed)
    problems: list[str] = []
    programs = scene.server, scene.serving, scene.following
    try:
        kills.wait_for("each stream has a message", lambda: all(load.acknowledged.values()))
        killed = kills.kill_some(
            programs,
            args.kills,
            random.Random(args.seed),
            (0.0, 1.5),
            lambda: problems.extend(differences(scene.data, scene.standby)),
        )
        scene.wait_until_complete(look(scene.data).mark)
        found = lags(scene, 20)
        print(f"lag: median {statistics.median(found):.2f} s, at most {max(found):.2f} s")
        scene.following.kill()
        time.sleep(0.3)
        scene.server.kill()
        scene.serving.kill()
        load.stop()
        problems += differences(scene.data, scene.standby) + promoted(scene, load)
    finally:
        load.stop()
    return kills.report(problems, killed, directory)


if __name__ == "__main__":
    sys.exit(main())
