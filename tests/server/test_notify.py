"""Notifications reach the socket of the service manager."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from fyrehose.server.notify import ServiceManager, waits_for_stop


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Return the address of a service manager for NOTIFY_SOCKET, and its socket."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@fyrehose-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        manager.setblocking(False)
        yield address, manager


def heard(manager: socket.socket) -> list[list[str]]:
    """Return the notifications since the last call."""
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return found


def test_notifications_from_start_to_stop(listening: tuple[str, socket.socket]) -> None:
    address, manager = listening
    clock = Clock()
    told = ServiceManager.from_environment(
        clock, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}
    )
    told.ready("serving")
    assert heard(manager) == [["READY=1", "STATUS=serving"], ["WATCHDOG=1"]]
    clock.pump([5, 5, 4.9])
    assert heard(manager) == [["WATCHDOG=1"]] * 2
    told.reloading()
    ((reloading, since),) = heard(manager)
    assert reloading == "RELOADING=1"
    assert int(since.removeprefix("MONOTONIC_USEC=")) > 0
    told.ready("serving")
    assert heard(manager) == [["READY=1", "STATUS=serving"]], "there is one watchdog"
    told.stopping()
    assert heard(manager) == [["STOPPING=1", "STATUS=stopping"]]
    clock.advance(100)
    assert heard(manager) == []
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "nonsense"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)
def test_without_a_watchdog_nothing_is_sent_regularly(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        clock = Clock()
        told = ServiceManager.from_environment(clock, {"NOTIFY_SOCKET": str(tmp_path / "notify"), **environment})
        told.ready("serving")
        assert heard(manager) == [["READY=1", "STATUS=serving"]]
        assert not clock.getDelayedCalls()


def test_stall_is_shown_until_it_has_ended(listening: tuple[str, socket.socket]) -> None:
    address, manager = listening
    told = ServiceManager.from_environment(Clock(), {"NOTIFY_SOCKET": address})
    for announce, status in ((told.ready, "serving"), (told.stopping, "draining")):
        announce(status)
        heard(manager)
        told.stalled("a turn takes long")
        told.recovered()
        assert heard(manager) == [["STATUS=a turn takes long"], [f"STATUS={status}"]], "and no WATCHDOG=1"


def test_without_a_manager_notifications_are_ignored(log_lines: list[str]) -> None:
    clock = Clock()
    told = ServiceManager.from_environment(clock, {"WATCHDOG_USEC": "1000000"})
    told.ready("serving")
    told.reloading()
    told.stopping()
    assert not clock.getDelayedCalls()
    assert log_lines == []


def test_a_missing_service_manager_is_logged_once(tmp_path: Path, log_lines: list[str]) -> None:
    told = ServiceManager.from_environment(Clock(), {"NOTIFY_SOCKET": str(tmp_path / "nowhere")})
    told.ready("serving")
    told.stopping()
    assert len(log_lines) == 1
    assert log_lines[0].startswith(f"cannot notify the service manager at {tmp_path / 'nowhere'}: ")


@pytest.mark.parametrize(
    ("environment", "waits"),
    [
        ({}, False),
        ({"NOTIFY_SOCKET": "/run/systemd/notify"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, True),
        ({"SUPERVISOR_ENABLED": "1"}, False),
    ],
)
def test_systemd_and_kubernetes_wait_for_a_server_that_drains(environment: dict[str, str], waits: bool) -> None:
    assert waits_for_stop(environment) is waits
