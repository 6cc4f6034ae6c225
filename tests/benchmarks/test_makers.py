"""Load makers as processes: those that cannot begin say why."""

from __future__ import annotations

import pytest

from benchmarks.datagrams import Datagrams
from benchmarks.maker import make, own_cpu
from benchmarks.makers import LoadFailed, Makers
from benchmarks.plans import Plan
from benchmarks.streams import Streams


def plan(wire: str) -> Plan:
    return Plan(wire=wire, port=1, read_port=1, stream="s", size=1, publishers=[1])


@pytest.mark.slow
def test_a_load_that_cannot_begin_says_why() -> None:
    with pytest.raises(LoadFailed, match="refused"), Makers([plan("figg"), plan("figg")]):
        pass


def test_datagrams_have_a_loop_of_their_own() -> None:
    assert isinstance(make(plan("figg")), Streams)
    assert isinstance(make(plan("backbone")), Datagrams)
    assert own_cpu() > 0
