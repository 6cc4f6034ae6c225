"""Memory that is lent to sockets."""

from __future__ import annotations

import attrs

from fyrehose.protocols.eventbus.lent import Lent


@attrs.define
class Message:
    """A message that the socket has done with, or not."""

    done: bool = False


def test_lent_and_given_back() -> None:
    lent = Lent(100)
    assert lent.fits(1_000), "the first may be of any size"
    first, second = Message(), Message()
    lent.add(first, 60)
    assert lent.fits(40)
    assert not lent.fits(41)
    lent.add(second, 40)
    assert not lent.fits(1)
    first.done = True
    assert lent.fits(60)
    assert lent.size == 40
    second.done = True
    assert lent.fits(101)
    assert lent.size == 0
