"""Unconfirmed events: confirmed, sent again, given up."""

from __future__ import annotations

from math import inf

import pytest

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.eventbus.client_session import Confirmations, PubConfirmed, PubTimedOut


def test_event_is_confirmed_by_its_uuid() -> None:
    pubs = Confirmations(5, 2)
    pubs.add(b"1", [b"one"], "first", 0)
    assert len(pubs) == 1
    assert pubs.received(b"2", 9) is None
    assert pubs.received(b"1", 9) == PubConfirmed(handle="first", sequence=9)
    assert pubs.received(b"1", 9) is None
    assert pubs.next_due() == inf


def test_event_is_resent_and_given_up() -> None:
    pubs = Confirmations(5, 2)
    pubs.add(b"1", [b"one"], "first", 0)
    pubs.add(b"2", [b"two"], "second", 3)
    assert pubs.resend(4.9) == ([], [])
    assert pubs.resend(5) == ([[b"one"]], [])
    assert pubs.next_due() == 8
    assert pubs.resend(10) == ([[b"two"], [b"one"]], [])
    assert pubs.resend(15) == ([[b"two"]], [PubTimedOut(handle="first")])
    assert pubs.abandon() == [PubTimedOut(handle="second")]
    assert len(pubs) == 0


def test_uuid_in_use_is_refused() -> None:
    pubs = Confirmations(5, 2)
    pubs.add(b"1", [b"one"], "first", 0)
    with pytest.raises(LocalProtocolError):
        pubs.add(b"1", [b"one"], "again", 0)
