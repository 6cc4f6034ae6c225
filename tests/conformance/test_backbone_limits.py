"""Test each limit of the backbone at its default: one below it, at it, one above it."""

from __future__ import annotations

from random import Random

from fyrehose.protocols.backbone.frames import Flags, KeepAlive, Push, Request
from fyrehose.protocols.backbone.session import BackboneServerSession, Dropped, Pushed
from fyrehose.protocols.backbone.settings import BackboneSettings

CLIENT = ("10.0.0.2", 4000)
SETTINGS = BackboneSettings()


def make() -> BackboneServerSession:
    """Return a session with default settings, to which CLIENT subscribed without a journal one second ago."""
    session = BackboneServerSession(
        SETTINGS, lambda: (1, 1_000_000), lambda address: False, Random(7), lambda host, action: True
    )
    joining = KeepAlive(address=CLIENT, flags=Flags.NOJOURNAL, token=bytes(16)).serialize()
    for now in (-1.0, 0.0):
        session.receive_datagrams(joining, len(joining), CLIENT, now)
    session.data_to_send()
    return session


def dropped(session: BackboneServerSession, datagram: bytes, now: float = 0.0) -> list[str]:
    events = session.receive_datagrams(datagram, len(datagram), CLIENT, now)
    return [event.cause for event in events if isinstance(event, Dropped)]


def test_exactly_as_many_pushes_a_second_are_accepted_as_the_rate_says() -> None:
    session, push = make(), Push(data=b"x").serialize()
    left = SETTINGS.push_rate - 1
    while left:
        count = min(left, 500)
        (event,) = session.receive_datagrams(push * count, len(push), CLIENT, 0.0)
        assert isinstance(event, Pushed)
        left -= count
    assert dropped(session, push) == [], "the last one that the rate allows"
    assert dropped(session, push) == ["push-rate"]
    assert dropped(session, push, 1 / SETTINGS.push_rate) == []


def test_exactly_as_many_requested_records_a_second_are_sent_as_the_rate_says() -> None:
    """A REQUEST may begin while the rate is not used up; it costs 20 records and its range, of at most 10,000."""
    session = make()

    def ask(first: int, cost: int, now: float = 0.0) -> list[str]:
        return dropped(session, Request(address=CLIENT, first=first, last=first + cost - 21).serialize(), now)

    assert SETTINGS.request_rate == 100_000
    assert [ask(first, 10_000) for first in range(1, 10)] == [[]] * 9
    assert ask(20, 9_999) == []
    assert ask(21, 21) == [], "the last one that the rate allows"
    assert ask(22, 21) == ["request-rate"]
    assert ask(23, 21, 19 / SETTINGS.request_rate) == ["request-rate"]
    assert ask(24, 21, 22 / SETTINGS.request_rate) == []


def test_no_more_bytes_are_sent_to_a_host_when_its_rate_is_used_up() -> None:
    session = make()
    burst = SETTINGS.destination_rate // 16
    session.sent_bytes.charge(CLIENT[0], burst - 1, 0.0)
    assert session.sent_bytes.spend(CLIENT[0], 0, 0.0)
    session.sent_bytes.charge(CLIENT[0], 1, 0.0)
    assert not session.sent_bytes.spend(CLIENT[0], 0, 0.0)
    session.sent_bytes.charge(CLIENT[0], SETTINGS.destination_rate, 0.0)
    assert not session.sent_bytes.spend(CLIENT[0], 0, 1.0)
    assert session.sent_bytes.spend(CLIENT[0], 0, 1.001)
