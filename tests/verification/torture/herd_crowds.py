"""A process with many clients of herd.py, and the commands that are sent to it.

    Crowd(specs).serve(ports)     the clients connect, and run until the process is told to stop
                .mark()           the server has ended: from now on only service by the next server counts
                .forget()         ignore how clients were served up to now
                .back()           since then: when the last of the served clients was served, and which were not
                .outcomes()       the result of each client

Clients connect from addresses of the loopback network: 127.0.0.2 counts as another host than 127.0.0.1.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from herd_bus import Bus
from herd_clients import Client, Outcome, Spec, StreamClient
from herd_protocols import KINDS
from load import Worker

#: Lets a socket choose its port when it connects, so that thousands of one address can share the free ports.
IP_BIND_ADDRESS_NO_PORT = 24


class Crowd(Worker):
    """Clients in a process of their own, which outlives the server."""

    def __init__(self, specs: list[Spec]) -> None:
        self.specs = specs
        super().__init__(specs)

    def serve(self, ports: dict[str, int]) -> None:
        self._pipe.send(("serve", ports))

    def mark(self) -> None:
        self.ask("mark")

    def forget(self) -> None:
        self.ask("forget")

    def back(self) -> tuple[float, list[str]]:
        last, away = self.ask("back")
        return last, away

    def outcomes(self) -> list[Outcome]:
        return list(self.ask("outcomes"))

    def _run(self, pipe: Connection, *plan: Any) -> None:
        serve(pipe, *plan)


def serve(pipe: Connection, specs: list[Spec]) -> None:
    word, ports = pipe.recv()
    assert word == "serve"
    loop: Any = Bus(specs, ports) if specs[0].protocol == "eventbus" else Loop(specs, ports)
    while True:
        while pipe.poll():
            (word,) = pipe.recv()
            now = time.monotonic()
            if word == "mark":
                loop.turn(0.0)  # handle what the old server has sent
                for client in loop.clients:
                    client.marked(time.monotonic())
                pipe.send(True)
            elif word == "back":
                times = [client.back for client in loop.clients if client.back is not None]
                away = [f"{c.spec.label} {c.number}" for c in loop.clients if c.back is None]
                pipe.send((max(times, default=now), away))
            elif word == "forget":
                for client in loop.clients:
                    client.back = None
                pipe.send(True)
            else:
                pipe.send([client.outcome(now) for client in loop.clients])
                return  # end now, because later messages would not be recorded
        loop.turn(0.02)


class Loop:
    """The sockets and timers of many clients."""

    def __init__(self, specs: list[Spec], ports: dict[str, int]) -> None:
        self.ports = ports
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Client]] = []
        self.turns = count()
        self.clients = [KINDS[spec.protocol](spec, number, self) for spec in specs for number in range(spec.count)]
        for client in self.clients:
            self.wake_at(client, time.monotonic())

    def turn(self, seconds: float) -> None:
        for key, events in self.selector.select(seconds):
            now = time.monotonic()
            if isinstance(key.data, StreamClient):
                self._stream(key.data, events, now)
            else:
                self._datagrams(key.data, now)
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            at, _, client = heapq.heappop(self.timers)
            if at == client.at:
                client.wake(now)
                self.wake_at(client, client.at)

    # The interface that clients call:

    def wake_at(self, client: Client, when: float) -> None:
        client.at = when
        heapq.heappush(self.timers, (when, next(self.turns), client))

    def connect(self, client: StreamClient) -> None:
        sock = client.sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if client.spec.address != "127.0.0.1":
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((client.spec.address, 0))
        client.out, client.connecting = bytearray(), True
        sock.connect_ex(("127.0.0.1", self.ports[client.spec.protocol]))
        self.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, client)

    def send(self, client: StreamClient, data: bytes) -> None:
        if client.sock is None:
            return
        client.out += data
        self._flush(client)

    def close(self, client: StreamClient) -> None:
        if client.sock is not None:
            self.selector.unregister(client.sock)
            client.sock.close()
            client.sock = None

    def open_datagrams(self, client: Client) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((client.spec.address, 0))
        sock.connect(("127.0.0.1", self.ports[client.spec.protocol]))
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ, client)
        return sock

    @staticmethod
    def datagram(client: Any, data: bytes) -> None:
        try:
            client.sock.send(data)
        except OSError:
            """Nobody listens at this moment."""

    # Internal:

    def _flush(self, client: StreamClient) -> None:
        try:
            while client.out and not client.connecting:
                del client.out[: client.sock.send(client.out)]
        except BlockingIOError:
            pass
        except OSError:
            client.out.clear()  # reading reports that the connection is lost
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out or client.connecting else 0)
        if self.selector.get_key(client.sock).events != wanted:
            self.selector.modify(client.sock, wanted, client)

    def _stream(self, client: StreamClient, events: int, now: float) -> None:
        if client.connecting:
            refused = client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            client.connecting = False
            if refused:
                client.lost(now, refused=True)
                return
            client.connected(now)
            self._flush(client)
            self.wake_at(client, client.at)
            return
        if events & selectors.EVENT_WRITE:
            self._flush(client)
        if events & selectors.EVENT_READ:
            try:
                chunk = client.sock.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if chunk:
                client.heard(chunk, now)
            else:
                client.lost(now)

    @staticmethod
    def _datagrams(client: Any, now: float) -> None:
        try:
            while True:
                client.heard(client.sock.recv(1 << 16), now)
        except OSError:
            return
