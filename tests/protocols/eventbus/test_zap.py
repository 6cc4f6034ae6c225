"""The answers to ZAP requests."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from fyrehose.broker.policy import parse
from fyrehose.identity import Action, Identity
from fyrehose.protocols.eventbus.zap import DOMAINS, Authenticator

PUBLIC, _ = zmq.curve_keypair()
KEY = z85.decode(PUBLIC)


def zap_request(address: bytes = b"127.0.0.1", mechanism: bytes = b"NULL", *credentials: bytes) -> list[bytes]:
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
    ("authenticator", "message", "cause"),
    [
        (Authenticator(), zap_request(), None),
        (Authenticator(), zap_request(b"8.8.8.8"), None),
        (NEAR, zap_request(b"10.1.2.3"), None),
        (NEAR, zap_request(b"::ffff:10.1.2.3"), None),
        (NEAR, zap_request(b"fd00::1"), None),
        (NEAR, zap_request(b"11.1.2.3"), "Forbidden"),
        (NEAR, zap_request(b"::1"), "Forbidden"),
        (NEAR, zap_request(b"\xff"), "Forbidden"),
        (KEYS, zap_request(b"1.2.3.4", b"CURVE", KEY), None),
        (KEYS, zap_request(b"1.2.3.4", b"CURVE", bytes(32)), "unknown-key"),
        (KEYS, zap_request(b"1.2.3.4", b"CURVE", KEY[:-1]), "no-key"),
        (KEYS, zap_request(b"1.2.3.4", b"CURVE"), "no-key"),
        (KEYS, zap_request(b"1.2.3.4", b"NULL"), "no-key"),
        (KEYS, zap_request(b"1.2.3.4", b"PLAIN", b"user", b"word"), "no-key"),
        (Authenticator(curve=True), zap_request(b"1.2.3.4", b"CURVE", bytes(32)), None),
        (NEAR, zap_request(b"9.2.3.4", b"CURVE", KEY), "Forbidden"),
        (Authenticator(curve=True, permits=permits), zap_request(b"9.2.3.4", b"CURVE", KEY), None),
        (Authenticator(curve=True, permits=permits), zap_request(b"9.2.3.4", b"CURVE", bytes(32)), "Forbidden"),
        (Authenticator(curve=True, permits=permits), zap_request(b"1.2.3.4", b"CURVE", KEY), "Forbidden"),
    ],
)
def test_authenticator_answers_by_policy_and_key(
    authenticator: Authenticator, message: list[bytes], cause: str | None
) -> None:
    answer = authenticator.answer(message, 9)
    assert answer.cause == cause
    assert answer.frames[:3] == [b"1.0", b"7", b"200" if cause is None else b"400"]
    assert answer.frames[4:] == [b"", b""]


@pytest.mark.parametrize(("action", "number"), [(Action.SUBSCRIBE, b"9"), (Action.PUBLISH, b"")])
def test_connection_that_subscribes_is_numbered(action: Action, number: bytes) -> None:
    message = zap_request()
    message[2] = DOMAINS[action]
    assert Authenticator().answer(message, 9).frames[4] == number


def test_domain_names_the_action() -> None:
    message = zap_request(b"10.1.2.3")
    assert NEAR.answer(message, 1).wanted == (Identity(host="10.1.2.3"), Action.PUBLISH)
    message[2] = DOMAINS[Action.SUBSCRIBE]
    refused = NEAR.answer(message, 1)
    assert (refused.cause, refused.wanted) == ("Forbidden", (Identity(host="10.1.2.3"), Action.SUBSCRIBE))


def test_admitted_identity_is_checked_against_current_keys() -> None:
    identity = Identity(host="1.2.3.4", key=PUBLIC.decode())
    assert KEYS.answer(zap_request(b"1.2.3.4", b"CURVE", KEY), 1).wanted == (identity, Action.PUBLISH)
    assert KEYS.may(identity, Action.PUBLISH)
    assert not Authenticator(curve=True, clients=frozenset([bytes(40)])).may(identity, Action.PUBLISH)
    assert not KEYS.may(Identity(), Action.PUBLISH)


OTHER = [*zap_request()[:2], b"other", *zap_request()[3:]]


@pytest.mark.parametrize(
    "frames", [[], [b"1.0"], [b"1.0", b"7"], [b"2.0", *zap_request()[1:]], zap_request()[:5], OTHER]
)
def test_invalid_zap_request_is_refused(frames: list[bytes]) -> None:
    answer = Authenticator().answer(frames, 1)
    assert answer.cause == "bad-zap-request"
    assert answer.frames[2] == b"500"
