"""Repeat POSTs with their idempotency keys while a real server is killed: each message is stored once."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow]

LISTEN = ("--listen", "http=tcp:0:interface=127.0.0.1")


def publish(port: int, number: int) -> int:
    """Publish message *number* with its number as the key; return its number in the stream."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/streams/s", str(number), {"Idempotency-Key": f"key-{number}"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise HTTPException(answer)
        first: int = answer["first"]
        return first
    finally:
        connection.close()


def test_retries_over_kills_store_each_message_once(start: Any) -> None:
    dice = random.Random(2)
    server = start(*LISTEN)
    answers: dict[int, int] = {}
    number = 0
    for _ in range(5):
        killer = threading.Timer(0.1 + dice.random() * 0.4, server.stop, (signal.SIGKILL,))
        killer.start()
        try:
            while number < 100_000:
                answers[number] = publish(server.port("http"), number)
                number += 1
        except (OSError, HTTPException, ValueError):
            pass  # publish the same message again, without knowing whether it was stored
        killer.join(100)
        time.sleep(0.01)
        server = start(*LISTEN)
        for again in dice.sample(sorted(answers), min(5, len(answers))):
            assert publish(server.port("http"), again) == answers[again]
    answers[number] = publish(server.port("http"), number)
    connection = HTTPConnection("127.0.0.1", server.port("http"), timeout=60)
    connection.request("GET", "/streams/s?limit=1000000")
    stored = [json.loads(line)["payload"] for line in connection.getresponse().read().splitlines()]
    connection.close()
    assert stored == [str(each) for each in range(number + 1)]
    assert answers == {each: each + 1 for each in range(number + 1)}
