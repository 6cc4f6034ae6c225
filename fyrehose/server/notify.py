"""What a service manager is told of us: systemd's protocol, a datagram of NAME=VALUE lines to a Unix socket.

    READY=1    RELOADING=1    STOPPING=1    STATUS=words for people    WATCHDOG=1, in time, as long as the reactor turns

Without ``NOTIFY_SOCKET`` in the environment nothing happens.  See sd_notify(3).
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


@attrs.define(eq=False)
class Manager:
    """The service manager, if there is one.

    :ivar address: its socket; empty: there is none
    :ivar interval: how often it wants to hear that all is well, in seconds; 0: never
    """

    clock: IReactorTime
    address: str = ""
    interval: float = 0.0
    _watchdog: LoopingCall | None = attrs.field(default=None, init=False)
    _deaf: bool = attrs.field(default=False, init=False)

    @classmethod
    def found(cls, clock: IReactorTime, environment: Mapping[str, str]) -> Manager:
        """The one that the environment names."""
        for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "") if for_us else ""
        return cls(
            clock, environment.get("NOTIFY_SOCKET", ""), int(interval) / 1_000_000 if interval.isdecimal() else 0.0
        )

    def ready(self, status: str) -> None:
        """We serve, for the first time or after a reload; from now on we say so in time."""
        self._tell("READY=1", f"STATUS={status}")
        if self.address and self.interval and self._watchdog is None:
            self._watchdog = LoopingCall(self._tell, "WATCHDOG=1")
            self._watchdog.clock = self.clock
            self._watchdog.start(self.interval / 2).addErrback(lambda f: log.failure("the watchdog is not fed", f))

    def reloading(self) -> None:
        """Files are read again."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The end has begun; it may take a while, and nobody need watch any more."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()
        self._tell("STOPPING=1")

    def _tell(self, *lines: str) -> None:
        if not self.address:
            return
        # A name that begins with @ is one without a file.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.setblocking(False)
                to.sendto("\n".join(lines).encode(), address)
            self._deaf = False
        except OSError as error:
            if not self._deaf:  # once is enough
                self._deaf = True
                log.warn("the service manager at {address} is not told: {error}", address=self.address, error=error)
