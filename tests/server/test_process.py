"""Signals, exit status and file descriptors of the process; tests/live/test_service.py tests a real one."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.error import ReactorNotRunning
from twisted.internet.task import Clock

from fyrehose.server import process


class FakeReactor:
    def __init__(self) -> None:
        self.told: list[str] = []

    def callFromThread(self, function: Any, *args: Any) -> None:
        self.told.append("called from a thread")
        function(*args)

    def stop(self) -> None:
        if "stopped" in self.told:
            raise ReactorNotRunning
        self.told.append("stopped")


class DrainingReactor(FakeReactor):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.callLater = self.clock.callLater


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background ignores it
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_reactor_and_a_second_one_has_no_effect(
    number: signal.Signals, log_lines: list[str]
) -> None:
    reactor = FakeReactor()
    process.stop_on_signals(reactor)
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert reactor.told == ["called from a thread", "stopped", "called from a thread"]
    assert log_lines[0] == f"stopping: {number.name}"
    assert "still stopping" in log_lines[1]


def test_sigterm_drains_before_the_reactor_stops(log_lines: list[str]) -> None:
    reactor = DrainingReactor()
    process.stop_on_signals(reactor, lambda: 5.0)
    os.kill(os.getpid(), signal.SIGTERM)
    reactor.clock.advance(4)
    assert "stopped" not in reactor.told
    reactor.clock.advance(1)
    assert "stopped" in reactor.told
    assert log_lines == ["stopping: SIGTERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_draining(number: signal.Signals, log_lines: list[str]) -> None:
    reactor = DrainingReactor()
    process.stop_on_signals(reactor, lambda: 5.0)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), number)
    assert "stopped" in reactor.told
    assert not reactor.clock.getDelayedCalls()
    assert log_lines == [f"stopping: {number.name}"]


def test_a_signal_after_draining_has_no_effect(log_lines: list[str]) -> None:
    reactor = DrainingReactor()
    process.stop_on_signals(reactor, lambda: 5.0)
    os.kill(os.getpid(), signal.SIGTERM)
    reactor.clock.advance(5)
    os.kill(os.getpid(), signal.SIGTERM)
    assert [told for told in reactor.told if told == "stopped"] == ["stopped"]
    assert log_lines[0] == "stopping: SIGTERM"
    assert "still stopping" in log_lines[1]


def test_ctrl_c_stops_the_server_without_draining() -> None:
    reactor = DrainingReactor()
    process.stop_on_signals(reactor, lambda: 5.0)
    os.kill(os.getpid(), signal.SIGINT)
    assert "stopped" in reactor.told


def test_a_background_job_still_ignores_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.stop_on_signals(FakeReactor())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("terminal", [False, True])
def test_sighup_reloads_the_configuration(terminal: bool) -> None:
    reactor = FakeReactor()
    process.reload_on_hangup(reactor, lambda: reactor.told.append("reloaded"), lambda: terminal)
    os.kill(os.getpid(), signal.SIGHUP)
    assert reactor.told == ["called from a thread", "reloaded"]


def test_the_loss_of_the_terminal_stops_the_reactor(log_lines: list[str]) -> None:
    reactor, terminal = FakeReactor(), [True]
    process.reload_on_hangup(reactor, lambda: reactor.told.append("reloaded"), lambda: terminal[0])
    terminal[0] = False
    os.kill(os.getpid(), signal.SIGHUP)
    assert reactor.told == ["called from a thread", "stopped"]
    assert log_lines == ["stopping: the terminal was closed"]


def test_exit_with_sets_the_status_whatever_twistd_exits_with() -> None:
    code = (
        "import atexit, sys; from fyrehose.server import process\n"
        "atexit.register(print, 'those before are not called')\n"
        "process.exit_with(4)\n"
        "atexit.register(print, 'those after are')\n"
        "process.say('why'); print('out'); sys.exit(0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (4, "out\nthose after are\n", "why\n")


def test_available_descriptors_are_the_hard_limit_minus_a_reserve() -> None:
    code = (
        "import resource; from fyrehose.server import process\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))\n"
        "print(process.raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{500 - process.RESERVED} (500, 500)\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 500


def test_collections_of_garbage_that_take_long_are_counted() -> None:
    times = iter([0.0, 0.049, 1.0, 1.049, 2.0, 2.051, 3.0])
    counted: list[float] = []
    pauses = process.CollectionPauses(lambda: counted.append(1), lambda: next(times))
    pauses.start()
    pauses.start()
    try:
        gc.collect()
        gc.collect()
        assert not counted, "the time between two of them does not count"
        gc.collect()
        assert len(counted) == 1
    finally:
        pauses.stop()
        pauses.stop()
    gc.collect()
    assert next(times) == 3.0, "it looks no more"


def test_garbage_collection_is_less_frequent_and_skips_existing_objects() -> None:
    limits, frozen = gc.get_threshold(), gc.get_freeze_count()
    there = [[] for _ in range(100)]
    try:
        process.reduce_garbage_collection()
        youngest, middle, oldest = gc.get_threshold()
        assert youngest > limits[0]
        assert youngest * (middle + 1) <= 10_000, "the longest pause, except for full collections"
        assert youngest * middle * oldest >= 2_000_000
        assert gc.get_freeze_count() >= frozen + len(there)
        assert gc.isenabled()
    finally:
        gc.set_threshold(*limits)
