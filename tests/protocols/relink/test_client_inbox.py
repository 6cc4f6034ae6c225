"""A client's received messages, before and after the program has processed them."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.protocols.relink.client import Inbox
from fyrehose.protocols.relink.events import Decided
from fyrehose.protocols.relink.frames import Message, Op, Operation, Terms
from fyrehose.protocols.relink.link import Link


def test_rolled_back_messages_are_consumed_and_not_passed_on() -> None:
    terms = Terms(endpoint="e", listener_transactions=True)
    link = Link(terms, True, 1, 1)
    got: list[Any] = []
    inbox = Inbox(lambda *message: got.append(message), pytest.fail, lambda: None)
    for payload, op in ((b"a", Op.COMMIT), (b"b", Op.ROLLBACK), (b"c", Op.COMMIT)):
        link.receive(Message(channels=(0,), parts=(payload,)))
        (event,) = link.receive(Operation(kind=op, channels=(0,)))
        assert isinstance(event, Decided)
        inbox.paused = payload == b"b"
        inbox.add(link, event)
    assert got == [(0, 0, (b"a",)), (0, 2, (b"c",))]
    assert link.receiving[0].consumed == 2
