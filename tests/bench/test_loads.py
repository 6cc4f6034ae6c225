"""Plans and figures of a case, without processes; tests/live/test_bench.py runs real servers."""

from __future__ import annotations

import subprocess
from itertools import permutations

import pytest

from fyrehose.bench.cases import Case
from fyrehose.bench.loads import Bout, figures, shares
from fyrehose.bench.plans import LoadOutcome
from fyrehose.bench.servers import FYREHOSE, Running
from fyrehose.bench.usage import Cpu


def test_shares_add_up_to_the_whole() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]


def test_figures_take_the_whole_time_and_the_busiest_load_maker() -> None:
    case = Case(name="figg/x", protocol="figg", messages=100, subscribers=2)
    outcomes = [
        LoadOutcome(began=10.0, ended=12.0, cpu=0.5, received=190, lost=1),
        LoadOutcome(began=10.5, ended=11.0, cpu=0.8, received=7, lost=2, latency={"arrived": [1.0, 2.0, 3.0]}),
    ]
    expected = {
        "rate": 50.0,
        "micros": pytest.approx(10_000.0),
        "user": pytest.approx(5_000.0),
        "system": pytest.approx(2_500.0),
        "maker": pytest.approx(8_000.0),
        "busy": 0.4,
        "sent": 200,
        "received": 197,
        "lost": 3,
        "arrived.50": 1.0,
        "arrived.99": 2.0,
        "arrived.99.9": 3.0,
    }
    for order in permutations(outcomes):
        assert figures(case, order, Cpu(1.0, 0.5, 0.25)) == expected, "the figures depend on the order of load makers"


def bout(**changes: object) -> Bout:
    running = Running(subprocess.Popen(["true"]), 1, 2, 3, extra={"directory": "d"})
    running.process.wait()
    case = Case(name="x/y", messages=10, **{"protocol": "figg"} | changes)  # type: ignore[arg-type]
    return Bout(case, FYREHOSE, running)


def test_workers_share_a_process_and_the_messages() -> None:
    (plan,) = bout(late=True, subscribers=4, extra={"leases": 100})._past()
    assert (plan.subscribers, plan.expected, plan.late) == (4, 10, True)


def test_subscribers_have_a_process_of_their_own() -> None:
    subscribers, publishers = bout(publishers=3, subscribers=4)._live("s")
    assert (subscribers.subscribers, subscribers.expected, subscribers.read_port) == (4, 10, 2)
    assert (publishers.publishers, publishers.subscribers, publishers.port) == ([4, 3, 3], 0, 1)
    assert publishers.extra == {"directory": "d", "last": 0, "round": 0}


def test_without_acknowledgements_a_publisher_is_its_own_first_subscriber() -> None:
    subscribers, publishers = bout(protocol="eventbus", subscribers=4)._live("s")
    assert (subscribers.subscribers, publishers.subscribers) == (3, 1)


def test_load_with_a_rate_measures_arrivals_in_the_process_that_sends() -> None:
    (plan,) = bout(subscribers=1, rate=100.0)._live("s")
    assert (plan.publishers, plan.subscribers, plan.rate) == ([10], 1, 100.0)
    slow, fast = bout(subscribers=1, rate=100.0, reads=50.0)._live("s")
    assert (slow.reads, slow.publishers, fast.reads, fast.subscribers) == (50.0, [], 0.0, 0)


def test_late_subscribers_connect_to_the_port_for_earlier_messages() -> None:
    (plan,) = bout(subscribers=1, late=True)._past()
    assert (plan.late, plan.read_port, plan.publishers) == (True, 3, [])
