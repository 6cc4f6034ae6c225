"""Notify the service manager, in systemd's protocol: a datagram of NAME=VALUE lines to a Unix socket.

    READY=1    RELOADING=1    STOPPING=1    STATUS=text for people    WATCHDOG=1, regularly, while the reactor runs

Without ``NOTIFY_SOCKET`` in the environment nothing is sent.  See sd_notify(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

log = Logger()


def waits_for_stop(environment: Mapping[str, str]) -> bool:
    """Return whether *environment* is that of systemd or Kubernetes, which give a server half a minute to stop.

    Other managers, such as ``docker stop`` and supervisord, kill the server after 10 seconds, even while it drains.
    """
    return "NOTIFY_SOCKET" in environment or "KUBERNETES_SERVICE_HOST" in environment


@attrs.define(eq=False)
class ServiceManager:
    """The connection to the service manager, to which notifications are sent if there is a manager.

    :ivar address: the socket of the service manager; empty: there is no service manager
    :ivar interval: the timeout of the manager's watchdog, in seconds; 0: no watchdog
    """

    clock: IReactorTime
    address: str = ""
    interval: float = 0.0
    _watchdog: LoopingCall | None = attrs.field(default=None, init=False)
    _failing: bool = attrs.field(default=False, init=False)
    _status: str = attrs.field(default="starting", init=False)

    @classmethod
    def from_environment(cls, clock: IReactorTime, environment: Mapping[str, str]) -> ServiceManager:
        """Return the service manager that the variables of *environment* name, such as ``NOTIFY_SOCKET``."""
        for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "") if for_us else ""
        return cls(
            clock, environment.get("NOTIFY_SOCKET", ""), int(interval) / 1_000_000 if interval.isdecimal() else 0.0
        )

    def ready(self, status: str) -> None:
        """Report that the server is ready, after its start or a reload, and start to notify the watchdog."""
        self._status = status
        self._notify("READY=1", f"STATUS={status}")
        if self.address and self.interval and self._watchdog is None:
            self._watchdog = LoopingCall(self._notify, "WATCHDOG=1")
            self._watchdog.clock = self.clock
            self._watchdog.start(self.interval / 2).addErrback(
                lambda f: log.failure("notifying the watchdog failed, and ends; please report this bug", f)
            )

    def reloading(self) -> None:
        """Report that the server reads its configuration files again."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "stopping") -> None:
        """Stop notifying the watchdog, and report that the server is stopping, which may take a while."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()
        self._status = status
        self._notify("STOPPING=1", f"STATUS={status}")

    def stalled(self, status: str) -> None:
        """Report *status*, because the reactor hangs, until :meth:`recovered` is called; another thread calls this.

        Only the reactor notifies the watchdog, so a server whose reactor hangs for good is killed.
        """
        self._notify(f"STATUS={status}")

    def recovered(self) -> None:
        """Report again the status that was in force before :meth:`stalled`."""
        self._notify(f"STATUS={self._status}")

    def _notify(self, *lines: str) -> None:
        if not self.address:
            return
        # A name that begins with @ is an abstract socket, without a file.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.setblocking(False)
                to.sendto("\n".join(lines).encode(), address)
            self._failing = False
        except OSError as error:
            if not self._failing:  # log only the first of several failures
                self._failing = True
                log.warn("cannot notify the service manager at {address}: {error}", address=self.address, error=error)
