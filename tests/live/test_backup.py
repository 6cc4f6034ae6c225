"""Copy the journal of a real server under load: by tar, cp and rsync, and by `fyrehose journal backup`."""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.offline.dump import runs
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from tests.doubles.opened_journal import opened
from tests.live.conftest import FYREHOSE, PATIENCE, fyrehose, ran, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

LISTEN = ("--listen", "http=tcp:0:interface=127.0.0.1", "--listen", "figg=tcp:0:interface=127.0.0.1")
#: Small segments, so that many are sealed while a copy is made.
SMALL = ("--option", "journal.segment-size=256K", "--option", "journal.min-free=1M")


@attrs.define(eq=False)
class Load:
    """Publishes by HTTP from several threads, each to a stream of its own, until it is stopped.

    :ivar acknowledged: how many messages the server has acknowledged, by stream; they are numbered from 0
    """

    port: int
    threads: int = 3
    acknowledged: dict[str, int] = attrs.field(factory=dict)
    _stop: threading.Event = attrs.field(factory=threading.Event, init=False)
    _running: list[threading.Thread] = attrs.field(factory=list, init=False)

    def __enter__(self) -> Load:
        for number in range(self.threads):
            thread = threading.Thread(target=self._publish, args=(f"s{number}", random.Random(number)))
            thread.start()
            self._running.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._running:
            thread.join(PATIENCE)

    def total(self) -> int:
        return sum(self.acknowledged.values())

    def wait_for_more(self, count: int) -> None:
        """Wait until *count* more messages are acknowledged."""
        wanted = self.total() + count
        until(lambda: self.total() >= wanted, "the server acknowledges nothing")

    def _publish(self, stream: str, dice: random.Random) -> None:
        number = self.acknowledged.get(stream, 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            while not self._stop.is_set():
                count = dice.choice((1, 5, 40))
                filler = "." * dice.choice((10, 100, 1500))
                lines = "".join(f"{i} {filler}\n" for i in range(number, number + count))
                connection.request(
                    "POST", f"/streams/{stream}", lines.encode(), {"Content-Type": "application/x-ndjson"}
                )
                answer = connection.getresponse()
                said = answer.read()
                assert answer.status == 200, said
                number += count
                self.acknowledged[stream] = number
        except OSError:
            return  # the server was stopped
        finally:
            connection.close()


def numbers(directory: Path) -> dict[str, list[int]]:
    """Return the numbers of the messages in a journal, by stream."""
    found: dict[str, list[int]] = {}
    for run in runs(directory):
        found.setdefault(run.stream, []).extend(int(bytes(payload).split(b" ")[0]) for payload in run.payloads())
    return found


def recovered(directory: Path) -> dict[str, list[int]]:
    """Return the messages that a server finds when it starts in the directory."""
    opened(directory, segment_size=256 << 10).close()
    return numbers(directory)


def has_everything(found: dict[str, list[int]], acknowledged: dict[str, int]) -> bool:
    """Return whether every acknowledged message is there; check that all are in order and none is there twice."""
    assert all(listed == list(range(len(listed))) for listed in found.values())
    return all(len(found.get(stream, [])) >= count for stream, count in acknowledged.items())


def by_tar(source: Path, target: Path) -> None:
    """Copy with tar, which is slowed down so that the server writes meanwhile."""
    slow = ["--checkpoint=100", "--checkpoint-action=exec=sleep 0.02"]
    command = ["tar", "-C", source, *slow, "-cf", "-", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reading:
        ran("tar", "-C", target, "-xf", "-", stdin=reading.stdout)
        assert reading.wait(PATIENCE) in (0, 1), (
            "tar failed; only status 1, a file that changed while it was read, is expected"
        )


def by_cp(source: Path, target: Path) -> None:
    ran("cp", "-a", f"{source}/.", target, status=None)


def by_cp_backwards(source: Path, target: Path) -> None:
    """Copy with cp, the newest file first."""
    for path in sorted((path for path in source.iterdir() if path.suffix in ("", ".segment", ".index")), reverse=True):
        ran("cp", path, target)


def by_rsync(source: Path, target: Path) -> None:
    """Copy with rsync, or with cp if rsync is not installed."""
    if shutil.which("rsync") is None:
        by_cp(source, target)
        return
    status = ran("rsync", "-a", f"{source}/", target, status=None).returncode
    assert status in (0, 24), "rsync failed; only status 24, a file that was deleted meanwhile, is expected"


def test_copies_made_file_by_file_have_every_record_acknowledged_before_the_copy(start: Any, tmp_path: Path) -> None:
    server = start(*LISTEN, *SMALL)
    source = tmp_path / "data"
    with Load(server.port("http")) as load:
        for copy in (by_tar, by_cp, by_cp_backwards, by_rsync):
            load.wait_for_more(300)
            target = tmp_path / "copy"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            before = dict(load.acknowledged)
            copy(source, target)
            assert has_everything(started_on(source, target), before)
    assert server.stop() == 0
    server = start(*LISTEN, *SMALL, "--data-dir", str(target))
    assert tailed(server.port("figg"), "s0", before["s0"])


def started_on(source: Path, copy: Path) -> dict[str, list[int]]:
    """Start on the copy, after copying again any file that the error names; return the messages that are found."""
    asked: list[str] = []
    while True:
        try:
            return recovered(copy)
        except JournalCorrupt as error:
            named = re.search(r"(\w+\.segment)\b.*copy (?:it|this file) again", str(error))
            if named is None or named[1] in asked:
                raise
            asked.append(named[1])
            shutil.copyfile(source / named[1], copy / named[1])


def tailed(port: int, stream: str, count: int) -> bool:
    """Return whether the first *count* messages of a stream are read by Figg."""
    words = ("--from", f"127.0.0.1:{port}", "--stream", stream, "--since", "start", "--count", count)
    ended = fyrehose("tail", *words, "--format", "json")
    listed = [int(json.loads(line)["payload"].split(" ")[0]) for line in ended.stdout.splitlines()]
    return listed == list(range(count))


@attrs.define(eq=False)
class Following:
    """A running ``fyrehose journal backup --follow``."""

    process: subprocess.Popen[str]
    target: Path
    errors: Path

    def wait_until_complete_to(self, position: int) -> None:
        def complete() -> bool:
            assert self.process.poll() is None, self.errors.read_text()
            return self.target.exists() and look(self.target).mark >= position

        until(complete, lambda: f"{look(self.target)} does not reach {position}")

    def end(self, number: signal.Signals) -> str:
        """Stop the backup by a signal; return its output."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, out + self.errors.read_text()
        return out


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Following]]:
    """Return a function that starts following backups, all of which end with the test."""
    started: list[Following] = []

    def starter(source: str, target: Path, *options: str) -> Following:
        errors = tmp_path / f"{target.name}.errors"
        command = [FYREHOSE, "journal", "backup", source, str(target), "--follow", "--every", "50ms", *options]
        with errors.open("a") as file:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        started.append(Following(process, target, errors))
        return started[-1]

    yield starter
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_backups_follow_a_server_through_a_restart_and_are_restored(
    start: Any, serve: Callable[..., str], follow: Callable[..., Following], tmp_path: Path
) -> None:
    """Back up by directory and by URL at once, kill one and start it again, then lose everything except the backups."""
    server = start(*LISTEN, *SMALL)
    source, near, far, restored = (tmp_path / name for name in ("data", "near", "far", "restored"))
    url = serve(source)
    with Load(server.port("http")) as load:
        load.wait_for_more(300)
        by_directory, by_url = follow(str(source), near, "--subscription", "near"), follow(url, far)
        load.wait_for_more(800)
        by_url.wait_until_complete_to(1)
        by_url.process.kill()
        by_url.process.communicate()
        assert verify(far).problems == []
        by_url = follow(url, far)
        load.wait_for_more(300)
        server.stop(signal.SIGKILL)
    acknowledged = dict(load.acknowledged)
    server = start(*LISTEN, *SMALL)
    with Load(server.port("http"), acknowledged=numbers_after(source)) as load:
        load.wait_for_more(300)
    assert server.stop() == 0
    acknowledged = {stream: max(count, acknowledged[stream]) for stream, count in load.acknowledged.items()}
    mark = look(source).mark
    for following, number in ((by_directory, signal.SIGTERM), (by_url, signal.SIGINT)):
        following.wait_until_complete_to(mark)
        assert "is complete up to position" in following.end(number)
        assert verify(following.target).problems == []
    shutil.rmtree(source)
    assert f"{restored} is complete up to position {mark}" in fyrehose("journal", "restore", far, restored).stdout
    for backup in (near, restored):
        assert has_everything(numbers(backup), acknowledged)
    server = start(*LISTEN, *SMALL, "--data-dir", str(restored))
    assert tailed(server.port("figg"), "s1", acknowledged["s1"])


def numbers_after(directory: Path) -> dict[str, int]:
    """Return the number of the next message, by stream."""
    return {stream: len(listed) for stream, listed in numbers(directory).items()}
