"""Ports that are chosen before a server listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fyrehose.testing.ports import PORTS, free_port, free_ports

#: Choose the first of three ports among a hundred, print it, and end after a line of input.  Nobody else chooses ports
#: below 10,000, so that the next ones are free.
CODE = """
import sys
from fyrehose.testing.ports import free_ports
first = int(sys.argv[1])
print(*free_ports(1, 3, range(first, first + 100)), flush=True)
input()
"""
CHOOSE = [sys.executable, "-W", "always", "-c", CODE]


def test_ports_are_different_and_not_those_that_the_kernel_gives_out() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(port in PORTS for port in ports)
    assert PORTS[-1] < 32_768


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_is_neither_used_nor_chosen_before(kind: socket.SocketKind) -> None:
    chosen = free_port()
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        used = other.getsockname()[1]
        free = 9_990 + kind
        assert free_ports(1, between=[used, chosen, chosen, free]) == [free]


@pytest.mark.parametrize("temporary", ["", "its own"])
def test_a_port_that_another_process_has_chosen_is_passed_over(temporary: str, tmp_path: Path) -> None:
    """The other process may have another directory for temporary files, as a benchmark beside tests."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)} if temporary else None
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*CHOOSE, "9000"], env=environment, **pipes) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        near = [*range(first - 2, first + 3)]
        assert free_ports(1, 3, between=[*near, first + 3]) == [first + 3]
        other.communicate(b"\n")


def test_a_process_that_has_chosen_ports_ends_without_a_warning() -> None:
    ended = subprocess.run([*CHOOSE, "9200"], input=b"\n", capture_output=True, check=True)
    assert ended.stdout
    assert ended.stderr == b""


def test_ports_of_one_row_are_consecutive_and_free() -> None:
    first = free_ports(1, 3, range(9_400, 9_500))[0]
    taken = {first - 2, first - 1, first, first + 1, first + 2}
    assert free_ports(1, 3, between=[*taken, first + 3]) == [first + 3]
