"""The answers to ZAP requests."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from fyrehose.core.policy import parse
from fyrehose.identity import Action, Identity
from fyrehose.protocols.eventbus.zap import DOMAINS, Authenticator

PUBLIC, _ = zmq.curve_keypair()
KEY = z85.decode(PUBLIC)


def question(address: bytes = b"127.0.0.1", mechanism: bytes = b"NULL", *credentials: bytes) -> list[bytes]:
    return [b"1.0", b"7", DOMAINS[Action.PUBLISH], address, b"", mechanism, *credentials]


POLICY = parse(
    {
        "allow": [
            {"network": ["10.0.0.0/8", "fd00::/8"], "publish": "s"},
            {"network": "9.0.0.0/8", "key": PUBLIC.decode(), "publish": "s"},
        ]
    }
)


def permits(identity: Identity, action: Action) -> bool:
    return POLICY.allows(identity, action, "s")


NEAR = Authenticator(permits=permits)
KEYS = Authenticator(curve=True, clients=frozenset([PUBLIC]))


@pytest.mark.parametrize(
    ("authenticator", "asked", "cause"),
    [
        (Authenticator(), question(), None),
        (Authenticator(), question(b"8.8.8.8"), None),
        (NEAR, question(b"10.1.2.3"), None),
        (NEAR, question(b"::ffff:10.1.2.3"), None),
        (NEAR, question(b"fd00::1"), None),
        (NEAR, question(b"11.1.2.3"), "Forbidden"),
        (NEAR, question(b"::1"), "Forbidden"),
        (NEAR, question(b"\xff"), "Forbidden"),
        (KEYS, question(b"1.2.3.4", b"CURVE", KEY), None),
        (KEYS, question(b"1.2.3.4", b"CURVE", bytes(32)), "unknown-key"),
        (KEYS, question(b"1.2.3.4", b"CURVE", KEY[:-1]), "no-key"),
        (KEYS, question(b"1.2.3.4", b"CURVE"), "no-key"),
        (KEYS, question(b"1.2.3.4", b"NULL"), "no-key"),
        (KEYS, question(b"1.2.3.4", b"PLAIN", b"user", b"word"), "no-key"),
        (Authenticator(curve=True), question(b"1.2.3.4", b"CURVE", bytes(32)), None),
        (NEAR, question(b"9.2.3.4", b"CURVE", KEY), "Forbidden"),
        (Authenticator(curve=True, permits=permits), question(b"9.2.3.4", b"CURVE", KEY), None),
        (Authenticator(curve=True, permits=permits), question(b"9.2.3.4", b"CURVE", bytes(32)), "Forbidden"),
        (Authenticator(curve=True, permits=permits), question(b"1.2.3.4", b"CURVE", KEY), "Forbidden"),
    ],
)
def test_authenticator_answers_by_policy_and_key(
    authenticator: Authenticator, asked: list[bytes], cause: str | None
) -> None:
    answer = authenticator.answer(asked)
    assert answer.cause == cause
    assert answer.frames[:3] == [b"1.0", b"7", b"200" if cause is None else b"400"]
    assert len(answer.frames) == 6


def test_domain_names_the_action() -> None:
    asked = question(b"10.1.2.3")
    assert NEAR.answer(asked).wanted == (Identity(host="10.1.2.3"), Action.PUBLISH)
    asked[2] = DOMAINS[Action.SUBSCRIBE]
    refused = NEAR.answer(asked)
    assert (refused.cause, refused.wanted) == ("Forbidden", (Identity(host="10.1.2.3"), Action.SUBSCRIBE))


def test_admitted_identity_is_checked_against_current_keys() -> None:
    identity = Identity(host="1.2.3.4", key=PUBLIC.decode())
    assert KEYS.answer(question(b"1.2.3.4", b"CURVE", KEY)).wanted == (identity, Action.PUBLISH)
    assert KEYS.may(identity, Action.PUBLISH)
    assert not Authenticator(curve=True, clients=frozenset([bytes(40)])).may(identity, Action.PUBLISH)
    assert not KEYS.may(Identity(), Action.PUBLISH)


def test_connection_beyond_the_limit_is_refused_temporarily() -> None:
    """After status 400 libzmq never reconnects."""
    answer = Authenticator().answer(question(), refused=lambda address: address == "127.0.0.1")
    assert answer.cause == "too-many-connections"
    assert answer.frames[2] == b"300"


OTHER = [*question()[:2], b"other", *question()[3:]]


@pytest.mark.parametrize("frames", [[], [b"1.0"], [b"1.0", b"7"], [b"2.0", *question()[1:]], question()[:5], OTHER])
def test_invalid_zap_request_is_refused(frames: list[bytes]) -> None:
    answer = Authenticator().answer(frames)
    assert answer.cause == "bad-zap-request"
    assert answer.frames[2] == b"500"
