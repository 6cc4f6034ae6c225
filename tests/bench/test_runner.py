"""Shares and samples; what runs for real is in tests/live/test_bench.py."""

from __future__ import annotations

import subprocess

from fyrehose.bench.cases import Case
from fyrehose.bench.plans import Outcome
from fyrehose.bench.runner import Bout, sample, shares
from fyrehose.bench.servers import FYREHOSE, Running
from fyrehose.bench.usage import Cpu


def test_shares_come_to_the_whole() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]


def test_a_sample_takes_the_whole_time_and_the_busiest_load_maker() -> None:
    case = Case(name="figg/x", protocol="figg", messages=100)
    outcomes = [
        Outcome(began=10.0, ended=12.0, cpu=0.5, received=100, lost=1),
        Outcome(began=10.5, ended=11.0, cpu=0.7, latency={"received": [1.0]}),
    ]
    found = sample(case, outcomes, Cpu(1.0, 0.6, 0.4), 5)
    assert (found.seconds, found.maker_cpu, found.received, found.lost, found.peak) == (2.0, 0.7, 100, 1, 5)
    assert found.latency == {"received": [1.0]}


def bout(case: Case) -> Bout:
    running = Running(subprocess.Popen(["true"]), 1, 2, 3)
    running.process.wait()
    return Bout(case, FYREHOSE, running)


def test_subscribers_have_a_process_of_their_own() -> None:
    subscribers, publishers = bout(
        Case(name="figg/x", protocol="figg", messages=10, publishers=3, subscribers=4)
    )._live("s")
    assert (subscribers.subscribers, subscribers.expected, subscribers.read_port) == (4, 10, 2)
    assert (publishers.publishers, publishers.subscribers, publishers.port) == ([4, 3, 3], 0, 1)


def test_who_hears_nothing_of_its_own_hears_what_all_hear() -> None:
    subscribers, publishers = bout(Case(name="eventbus/x", protocol="eventbus", messages=10, subscribers=4))._live("s")
    assert (subscribers.subscribers, publishers.subscribers) == (3, 1)


def test_catching_up_is_done_at_the_port_of_the_past() -> None:
    (plan,) = bout(Case(name="figg/x", protocol="figg", messages=10, subscribers=1, late=True))._past()
    assert (plan.late, plan.read_port, plan.publishers) == (True, 3, [])
