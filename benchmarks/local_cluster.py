"""Start a cluster on loopback: NATS servers and Fyrehose servers as processes, for tests and for trying it out.

    python -m benchmarks.local_cluster DIRECTORY

starts three servers of each kind, restarts Fyrehose servers that end, and ends all processes on Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs

from benchmarks.nats_servers import NatsNodes
from fyrehose.testing.ports import free_ports

#: The names of the servers.
NAMES = ("a", "b", "c")
#: Ports for trying a cluster out: Figg, HTTP and the page of the servers ``a``, ``b`` and ``c``.
PORTS = ((8119, 8180, 8280), (8129, 8181, 8281), (8139, 8182, 8282))


@attrs.define(eq=False)
class ClusterServer:
    """A Fyrehose server of the cluster.

    :ivar ports: the ports of Figg, of HTTP, and of the page
    :ivar member: the server's name in the cluster, if it differs from *name*, because a machine that has lost its disk
        gets a new name
    :ivar listen: further listeners, as in the table ``[listen]``
    :ivar more: further tables of the configuration
    :ivar replication: further lines of the table ``[replication]``
    :ivar code: directory of another version of Fyrehose, whose code the server's processes run; empty: this version
    """

    name: str
    directory: Path
    urls: list[str]
    ports: tuple[int, ...]
    process: subprocess.Popen[bytes] | None = None
    member: str = ""
    listen: dict[str, str] = attrs.field(factory=dict)
    more: str = ""
    replication: str = ""
    code: str = ""

    @property
    def log(self) -> str:
        """Return the log of all processes of this server."""
        return self.directory.joinpath("log").read_text(errors="replace")

    @property
    def config(self) -> str:
        """Return the text of this server's configuration file."""
        figg, http, page = self.ports
        listen = {"figg": f"tcp:{figg}", "http": f"tcp:{http}", "admin": f"tcp:{page}", **self.listen}
        lines = [f'{name} = "{endpoint}:interface=127.0.0.1"\n' for name, endpoint in listen.items()]
        return (
            f'data-dir = "{self.directory / "data"}"\n\n[listen]\n{"".join(lines)}\n'
            f'[option.journal]\nmin-free = "16MiB"\n\n{self.more}'
            f'[replication]\nservers = {json.dumps(self.urls)}\nname = "{self.member or self.name}"\n'
            f'address = "127.0.0.1:{http}"\n{self.replication}'
        )

    def start(self) -> None:
        """Write the server's configuration, and start its process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.joinpath("fyrehose.toml").write_text(self.config)
        with self.directory.joinpath("log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("twistd")),
                    "-n",
                    f"--pidfile={self.directory / 'pid'}",
                    "fyrehose",
                    "--config",
                    str(self.directory / "fyrehose.toml"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in [self.code, *sys.path] if path)},
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process of this server; return its exit status."""
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.process = None
        return status


@attrs.define(eq=False)
class Cluster:
    """A cluster of three NATS servers and three Fyrehose servers; a context manager that ends them."""

    directory: Path
    ports: tuple[tuple[int, ...], ...] = ()
    nats: NatsNodes = attrs.field(init=False)
    servers: dict[str, ClusterServer] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.nats = NatsNodes(self.directory)
        found = free_ports(3 * len(NAMES))
        ports = self.ports or tuple(tuple(found[3 * i : 3 * i + 3]) for i in range(len(NAMES)))
        for name, of in zip(NAMES, ports, strict=True):
            self.servers[name] = ClusterServer(name, self.directory / name, self.nats.urls, of)

    def __enter__(self) -> Cluster:
        self.nats.__enter__()
        for server in self.servers.values():
            server.start()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.stop(signal.SIGKILL)
        self.nats.__exit__(*error)

    def watch(self) -> None:
        """Restart every server that ends, as systemd would; this never returns."""
        while True:
            for server in self.servers.values():
                if server.process is None or server.process.poll() is not None:
                    print(f"server {server.name} has ended; starting it again", flush=True)
                    server.start()
            time.sleep(5)


def main() -> None:
    """Run a cluster in the directory that the command line names, until Ctrl-C."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.local_cluster DIRECTORY")
    directory = Path(sys.argv[1]).absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Cluster(directory, PORTS) as cluster:
        for server in cluster.servers.values():
            figg, http, page = server.ports
            print(f"server {server.name}: figg on 127.0.0.1:{figg}, HTTP on {http}, page http://127.0.0.1:{page}/")
        print(
            f"logs and journals are in {directory}; `fyrehose help cluster trying it out` says what to try; Ctrl-C "
            "ends everything",
            flush=True,
        )
        try:
            cluster.watch()
        except KeyboardInterrupt:
            print("ending")


if __name__ == "__main__":
    main()
