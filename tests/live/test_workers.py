"""Test workers of a shared subscription of a real server: the command line, and the example of image workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import FYREHOSE, PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "workers"
LISTEN = ["--listen", "http=tcp:0:interface=127.0.0.1"]
GOOD, BAD = b"P6 4 4 255\n" + bytes(range(48)), b"GIF89a"


class Server:
    """A real server that is used through HTTP and the command line."""

    def __init__(self, port: int, directory: Path) -> None:
        self.port, self.directory = port, directory

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return text
        finally:
            connection.close()

    def publish(self, *images: bytes) -> None:
        for image in images:
            self.ask("POST", "/streams/images", image)

    def show(self, name: str) -> Any:
        return json.loads(self.ask("GET", f"/subscriptions/{name}"))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        place = ["--url", f"http://127.0.0.1:{self.port}"]
        at = 2 if words[0] == "subscriptions" else 1
        command = [FYREHOSE, *words[:at], *place, *words[at:]]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def server(start: Any, tmp_path: Path) -> Server:
    running = start(*LISTEN)
    return Server(running.port("http"), tmp_path)


def test_fyrehose_work_runs_a_command_for_each_image(server: Server) -> None:
    server.publish(GOOD, GOOD, BAD, GOOD)
    made = server.command(
        "subscriptions", "create", "thumbs", "--stream", "images", "--limit", "1", "--dead", "images.dead"
    )
    assert made.stdout == "shared subscription thumbs of images is there\n", made.stderr
    (server.directory / "thumbs").mkdir()
    program = [sys.executable, str(EXAMPLE / "thumbnail.py"), "thumbs"]
    work = ["work", "--stream", "images", "--subscription", "thumbs", "--jobs", "2", "--idle", "1s", "--", *program]
    done = server.command(*work)
    assert (done.returncode, "3 settled, 1 failed" in done.stderr) == (1, True), done.stderr
    assert sorted(each.name for each in (server.directory / "thumbs").iterdir()) == ["1.ppm", "2.ppm", "4.ppm"]
    assert (server.directory / "thumbs" / "1.ppm").read_bytes().startswith(b"P6 2 2 255\n")
    shown = server.show("thumbs")
    assert (shown["settled_total"], shown["dead_total"], shown["dead_letters"][0]["why"]) == (3, 1, "limit")
    again = server.command("subscriptions", "redrive", "thumbs")
    assert again.stdout == "1 dead letter of subscription thumbs published again\n", again.stderr
    assert server.show("thumbs")["lag"] == 1
    assert "thumbs" in server.command("subscriptions", "list").stdout
    assert "is paused" in server.command("subscriptions", "pause", "thumbs").stdout
    assert server.show("thumbs")["paused"]
    assert server.command("subscriptions", "delete", "thumbs").returncode == 0


def test_a_worker_returns_an_image_as_not_tried_if_its_directory_is_missing(server: Server) -> None:
    server.publish(GOOD)
    program = [sys.executable, str(EXAMPLE / "thumbnail.py"), "missing"]
    done = server.command("work", "--stream", "images", "--subscription", "t", "--idle", "0.1s", "--", *program)
    # On a busy machine it may get the image again before it has been idle for so long.
    assert (done.returncode, bool(re.search(r"\b[1-9]\d* returned", done.stderr))) == (0, True), done.stderr
    assert server.show("t")["dead_total"] == 0


def test_a_pool_of_workers_publishes_one_thumbnail_for_each_image(server: Server) -> None:
    server.publish(*[GOOD] * 20, BAD)
    command = [sys.executable, str(EXAMPLE / "pool.py"), "127.0.0.1", str(server.port), "--idle", "1", "--workers", "3"]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    shown = server.show("thumbs-pool")
    assert (shown["settled_total"], shown["dead_total"], shown["in_flight"]) == (20, 1, 0)
    assert shown["dead_letters"][0]["why"] == "this is not a binary PPM image"
    assert len(server.ask("GET", "/streams/thumbs").splitlines()) == 20
