"""Who may connect."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
import zmq
from zmq.utils import z85

from fyrehose.protocols.eventbus.zap import DOMAIN, Door

PUBLIC, _ = zmq.curve_keypair()
KEY = z85.decode(PUBLIC)


def question(address: bytes = b"127.0.0.1", mechanism: bytes = b"NULL", *credentials: bytes) -> list[bytes]:
    return [b"1.0", b"7", DOMAIN, address, b"", mechanism, *credentials]


NEAR = Door(allow=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
KEYS = Door(curve=True, clients=frozenset([PUBLIC]))


@pytest.mark.parametrize(
    ("door", "asked", "cause"),
    [
        (Door(), question(), None),
        (Door(), question(b"8.8.8.8"), None),
        (NEAR, question(b"10.1.2.3"), None),
        (NEAR, question(b"::ffff:10.1.2.3"), None),
        (NEAR, question(b"fd00::1"), None),
        (NEAR, question(b"11.1.2.3"), "not-allowed"),
        (NEAR, question(b"::1"), "not-allowed"),
        (NEAR, question(b"\xff"), "not-allowed"),
        (KEYS, question(b"1.2.3.4", b"CURVE", KEY), None),
        (KEYS, question(b"1.2.3.4", b"CURVE", bytes(32)), "unknown-key"),
        (KEYS, question(b"1.2.3.4", b"CURVE", KEY[:-1]), "no-key"),
        (KEYS, question(b"1.2.3.4", b"CURVE"), "no-key"),
        (KEYS, question(b"1.2.3.4", b"NULL"), "no-key"),
        (KEYS, question(b"1.2.3.4", b"PLAIN", b"user", b"word"), "no-key"),
        (Door(curve=True), question(b"1.2.3.4", b"CURVE", bytes(32)), None),
        (Door(curve=True, allow=NEAR.allow), question(b"1.2.3.4", b"CURVE", KEY), "not-allowed"),
    ],
)
def test_answers(door: Door, asked: list[bytes], cause: str | None) -> None:
    answer = door.answer(asked)
    assert answer.cause == cause
    assert answer.frames[:3] == [b"1.0", b"7", b"200" if cause is None else b"400"]
    assert len(answer.frames) == 6


def test_a_full_house() -> None:
    assert Door().answer(question(), full=True).cause == "too-many-connections"


@pytest.mark.parametrize("frames", [[], [b"1.0"], [b"1.0", b"7"], [b"2.0", *question()[1:]], question()[:5]])
def test_what_is_no_question_is_no_permission(frames: list[bytes]) -> None:
    answer = Door().answer(frames)
    assert answer.cause == "bad-zap-request"
    assert answer.frames[2] == b"500"
