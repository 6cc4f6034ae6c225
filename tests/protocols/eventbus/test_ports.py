"""The interfaces between server and sockets."""

from __future__ import annotations

import inspect

import attrs
import pytest

from fyrehose.protocols.eventbus.ports import Peers, Port
from fyrehose.protocols.eventbus.zmqport import ZMQPort


@pytest.mark.parametrize("name", [name for name, _ in inspect.getmembers(Port, inspect.isfunction) if name[0] != "_"])
def test_zmqport_has_every_method_of_port(name: str) -> None:
    asked, there = (inspect.signature(getattr(kind, name)) for kind in (Port, ZMQPort))
    assert asked == there


def test_default_peers_close_no_connection() -> None:
    peers = Peers()
    assert list(peers.subscribers()) == []
    for field in attrs.fields(Peers)[1:]:
        assert getattr(peers, field.name)("10.0.0.1", 7) is None
