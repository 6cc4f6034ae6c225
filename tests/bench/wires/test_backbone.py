"""Datagrams as the backbone's own frames read them."""

from __future__ import annotations

from fyrehose.bench.wires.backbone import keepalive, push, request, sequence
from fyrehose.protocols.backbone.frames import Deliver, Flags, KeepAlive, Push, Request, decode


def test_datagrams_equal_those_of_the_backbone_frames() -> None:
    assert decode(push(b"abc")) == Push(data=b"abc")
    asked = decode(request(4_000, 3, 1 << 40))
    assert asked == Request(address=("0.0.0.0", 4_000), first=3, last=1 << 40)
    said = decode(keepalive(4_000, True))
    assert isinstance(said, KeepAlive)
    assert (said.address, said.flags) == (("0.0.0.0", 4_000), Flags.NOJOURNAL)
    quiet = decode(keepalive(4_000, False))
    assert isinstance(quiet, KeepAlive)
    assert quiet.flags == Flags.NOJOURNAL | Flags.NOSUBSCRIBE


def test_sequence_of_a_deliver_is_read() -> None:
    data = memoryview(b"x" + Deliver(seq=1 << 40, data=b"abc").serialize())
    assert sequence(data, 1) == 1 << 40
    assert sequence(data, 0) == 0
