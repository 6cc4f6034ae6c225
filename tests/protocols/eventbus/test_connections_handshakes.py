"""Connections that did not complete a ZeroMQ handshake."""

from __future__ import annotations

import errno

import pytest

from fyrehose.protocols.eventbus.connections import BAD, LEFT, TIMEOUT, Handshakes


def test_connection_that_ends_after_its_handshake_has_no_cause() -> None:
    found = Handshakes()
    for _ in range(2):
        found.accepted(7)
        found.succeeded()
        assert found.ended(7) is None


def test_connection_that_ends_before_its_handshake_counts_as_failed() -> None:
    found = Handshakes()
    found.accepted(7)
    assert found.ended(7) == BAD
    found.accepted(7)
    found.succeeded()
    assert found.ended(7) is None


@pytest.mark.parametrize(
    ("number", "options", "cause"),
    [
        (errno.EAGAIN, {}, TIMEOUT),
        (errno.EPIPE, {}, LEFT),
        (errno.ECONNRESET, {}, LEFT),
        (0x11000002, {"protocol": True}, BAD),
        (400, {"refused": True}, None),
    ],
)
def test_failure_belongs_to_the_next_connection_that_ends(
    number: int, options: dict[str, bool], cause: str | None
) -> None:
    found = Handshakes()
    found.accepted(7)
    found.accepted(8)
    found.failed(number, **options)
    assert found.ended(8) == cause
    found.succeeded()
    assert found.ended(7) is None


def test_ambiguous_handshake_success_counts_for_the_next_connection_that_ends() -> None:
    found = Handshakes()
    for descriptor in (7, 8, 9):
        found.accepted(descriptor)
    found.succeeded()
    assert found.ended(8) is None
    assert found.ended(7) == BAD
    found.succeeded()
    assert found.ended(9) is None
