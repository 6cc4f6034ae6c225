"""Test named subscriptions in a real server: kill -9, the command line, and the examples of the page about streams."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import subprocess
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import FYREHOSE, PATIENCE, listening

pytestmark = [pytest.mark.live, pytest.mark.slow]

LISTEN = listening("http", "relink")
PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()


def shown(port: int, name: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", f"/subscriptions/{name}")
    try:
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


class Everything:
    """Reads the subscription "everything" of the pattern "logs.*" and acknowledges it, until the server ends.

    :ivar sent: the highest number of each stream whose acknowledgement was sent
    :ivar answered: the highest number of each stream whose acknowledgement was answered
    """

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.problems: list[str] = []

    def run(self, port: int, dice: random.Random, until: dict[str, int]) -> None:
        """Consume until the connection is lost, or everything up to the numbers *until* is acknowledged."""
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            while self.answered != until:
                self._round(connection, dice)
        except (OSError, HTTPException):
            return
        finally:
            connection.close()

    def _round(self, connection: HTTPConnection, dice: random.Random) -> None:
        query = f"match=logs.*&subscription=everything&limit={dice.randint(1, 9)}&wait=5"
        connection.request("GET", f"/streams/*?{query}")
        numbers: dict[str, int] = {}
        for line in connection.getresponse().read().splitlines():
            record = json.loads(line)
            stream, seq = record["stream"], record["seq"]
            if stream not in numbers and not self.answered.get(stream, 0) < seq <= self.sent.get(stream, 0) + 1:
                self.problems.append(f"read {seq} of {stream}: {self.answered} acknowledged, {self.sent} sent")
            numbers[stream] = seq
        for stream, seq in numbers.items():
            self.sent[stream] = max(self.sent.get(stream, 0), seq)
        connection.request("POST", "/subscriptions/everything/ack", json.dumps({"positions": numbers}))
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            self.answered |= numbers


def test_positions_of_a_pattern_subscription_are_exact_over_kills(start: Any) -> None:
    """Kill the server while a client consumes a pattern, and create another stream each time."""
    dice = random.Random(2)
    server = start(*LISTEN)
    consumer, published = Everything(), {}
    for round_ in range(6):
        connection = HTTPConnection("127.0.0.1", server.port("http"), timeout=PATIENCE)
        body = b"".join(b'{"n": %d}\n' % n for n in range(60))
        connection.request("POST", f"/streams/logs.{round_}", body, {"Content-Type": "application/x-ndjson"})
        published[f"logs.{round_}"] = json.loads(connection.getresponse().read())["last"]
        connection.close()
        thread = threading.Thread(target=consumer.run, args=(server.port("http"), dice, dict(published)))
        thread.start()
        time.sleep(dice.random() * 0.4)
        server.stop(signal.SIGKILL)
        thread.join(100)
        server = start(*LISTEN)
        if consumer.answered:
            shown_now = shown(server.port("http"), "everything")["positions"]
            for stream, place in shown_now.items():
                assert consumer.answered.get(stream, 0) <= place["position"] <= consumer.sent.get(stream, 0)
                if place["position"]:
                    consumer.answered[stream] = place["position"]
    consumer.run(server.port("http"), dice, published)
    assert consumer.problems == []
    final = shown(server.port("http"), "everything")
    assert (final["kind"], final["streams"], final["lag"]) == ("pattern", 6, 0)
    assert {stream: place["position"] for stream, place in final["positions"].items()} == published


def test_the_examples_of_the_subscriptions_page_run(start: Any) -> None:
    server = start(*LISTEN)
    (block,) = (found for found in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "subscription" in found)
    for example in block.strip().split("$ ")[1:]:
        command, _, expected = example.partition("\n")
        words = shlex.split(command.replace("127.0.0.1:8117", f"127.0.0.1:{server.port('http')}"))
        if words[0] == "fyrehose":
            words[:1] = [FYREHOSE]
            if "relink" in words:
                words += ["--from", f"127.0.0.1:{server.port('relink')}", "--idle", "60s"]
            else:
                words += ["--url", f"http://127.0.0.1:{server.port('http')}"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert _plain(ended.stdout) == _plain(expected), (command, ended.stderr)


def _plain(text: str) -> list[str]:
    """Return the lines of *text* without parts that differ each time: times, addresses, and the widths of columns."""
    text = re.sub(r'"(time|active)": \d+|"lag_seconds": [\d.]+|"producer": "[^"]*"|null|[\d,.]+ s\b', "~", text)
    text = re.sub(r'"lag_seconds": ~', "~", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "~", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and set(line) - set(" ─")]
