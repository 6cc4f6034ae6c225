"""Test that a server ends the connections of a machine that has vanished, without a word, within a minute."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fyrehose.offline.view import look
from fyrehose.protocols.figg.frames import Attach
from fyrehose.protocols.figg.session import FiggClientSession
from tests.live.conftest import FYREHOSE, Start, ran, until
from tests.live.networks import Network

pytestmark = [pytest.mark.live, pytest.mark.slow]

ESTABLISHED = ("ss", "-Htn", "state", "established")
POLICY = """
[[allow]]
network = "10.0.0.0/8"
publish = "*"
subscribe = "*"
consume = "*"
"""
#: Connects to each port, sends the bytes, waits for an answer if there are any, and then stays silent.
SILENT = """
import socket, sys, time
peers = []
for port, data in zip(sys.argv[1::2], sys.argv[2::2]):
    peers.append(socket.create_connection(("10.9.0.1", int(port))))
    peers[-1].sendall(bytes.fromhex(data))
    if data:
        peers[-1].recv(100)
print(flush=True)
time.sleep(1000)
"""
#: What a live consumer of a named subscription sends.
CONSUME = b"GET /streams/t/live?subscription=s HTTP/1.1\r\nHost: 10.9.0.1\r\n\r\n"


@pytest.fixture
def networks() -> Iterator[tuple[Network, Network]]:
    """Networks of a server at 10.9.0.1 and of a client at 10.9.0.2."""
    server = Network.make()
    client = Network.make(server)
    server.link("10.9.0.1", client, "10.9.0.2")
    yield server, client
    for network in (client, server):
        network.end()


def curl(network: Network, *words: str) -> str:
    """Return the status of a request from *network*; it is sent again if there is none within 5 s."""
    command = [*network.inside, "curl", "-sN", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", *words]
    return until(lambda: ran(*command, status=None).stdout.replace("000", ""), "the server does not answer")


def silent_peers(client: Network, *words: str) -> subprocess.Popen[bytes]:
    """Return a process of *client* whose connections have sent what they send: pairs of a port and bytes in hex."""
    made = subprocess.Popen([*client.inside, sys.executable, "-c", SILENT, *words], stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"\n"
    return made


def connections(server: Network) -> list[str]:
    """Return the connections of the client, as `ss` lists them; the second number is how many bytes are under way."""
    return [line for line in server.run(*ESTABLISHED).splitlines() if "10.9.0.2:" in line]


def vanish(server: Network, client: Network) -> None:
    """Cut *client* off, and wait until *server* has no connection of it, at most a minute."""
    client.run("ip", "link", "set", "to-10.9.0.1", "down")
    deadline = time.monotonic() + 60
    while found := connections(server):
        assert time.monotonic() < deadline, f"connections of the machine that has vanished: {found}"
        time.sleep(1)


def test_connections_of_a_vanished_machine_end_within_a_minute(
    networks: tuple[Network, Network], start: Start, tmp_path: Path
) -> None:
    server, client = networks
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    listen = ["--listen", "http=tcp:8117:interface=10.9.0.1", "--listen", "figg=tcp:8119:interface=10.9.0.1"]
    start("--data-dir", "data", "--policy", str(policy), *listen, command=server.inside)
    live = "http://10.9.0.1:8117/streams/t/live?subscription=s"
    assert curl(server, "-d", "one", "http://10.9.0.1:8117/streams/t") == "200"
    attaching = FiggClientSession()
    attaching.send(Attach(topic="t", offset=0))
    silent = silent_peers(client, "8117", CONSUME.hex(), "8119", b"".join(attaching.data_to_send()).hex())
    assert len(connections(server)) == 2
    assert curl(server, live) == "409"
    vanish(server, client)
    assert curl(server, live) == "200"
    silent.kill()
    silent.communicate()


def test_readers_of_a_served_journal_that_vanish_are_disconnected_within_a_minute(
    networks: tuple[Network, Network], start: Start, tmp_path: Path
) -> None:
    """One reader is idle, and the other one is in the middle of a file."""
    server, client = networks
    start("--data-dir", "data", "--listen", "http=tcp:8117:interface=127.0.0.1", command=server.inside)
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    assert curl(server, "--data-binary", f"@{tmp_path / 'large'}", "http://127.0.0.1:8117/streams/t") == "200"
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    command = [*server.inside, FYREHOSE, "journal", "serve", "--token-file", str(token)]
    serving = subprocess.Popen([*command, "--listen", "10.9.0.1:8120", str(tmp_path / "data")], stdout=subprocess.PIPE)
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith(b"serving ")
    base = look(tmp_path / "data").segments[-1].base
    asked = [
        f"GET {path} HTTP/1.1\r\nHost: 10.9.0.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n".encode().hex()
        for path in ("/journal", f"/segments/{base:016x}")
    ]
    silent = silent_peers(client, "8120", asked[0], "8120", asked[1])
    until(
        lambda: sorted(int(line.split()[1]) > 0 for line in connections(server)) == [False, True],
        lambda: connections(server),
    )
    vanish(server, client)
    headers = "Authorization: Bearer 0123456789abcdef"
    assert curl(server, "-H", headers, "http://10.9.0.1:8120/journal") == "200"
    for process in (silent, serving):
        process.kill()
        process.communicate()
