"""Load makers run as processes, and report why they cannot begin."""

from __future__ import annotations

import pytest

from fyrehose.bench.datagrams import Datagrams
from fyrehose.bench.maker import make
from fyrehose.bench.makers import LoadFailed, Makers
from fyrehose.bench.plans import Plan
from fyrehose.bench.streams import StreamLoad


def plan(wire: str) -> Plan:
    return Plan(wire=wire, port=1, read_port=1, stream="s", size=1, publishers=[1])


@pytest.mark.slow
def test_a_load_that_cannot_begin_says_why() -> None:
    with pytest.raises(LoadFailed, match="refused"), Makers([plan("figg"), plan("figg")]):
        pass


def test_backbone_load_runs_in_its_own_loop() -> None:
    assert isinstance(make(plan("figg")), StreamLoad)
    assert isinstance(make(plan("backbone")), Datagrams)
