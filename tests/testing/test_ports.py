"""Ports that are chosen before a server listens."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from fyrehose.testing.ports import PORTS, free_port, free_ports


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


def test_a_port_that_another_process_has_chosen_is_passed_over() -> None:
    code = "from fyrehose.testing.ports import free_ports; print(*free_ports(1, 3), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        near = [*range(first - 2, first + 3)]
        assert free_ports(1, 3, between=[*near, first + 3]) == [first + 3]
        other.communicate(b"\n")


def test_ports_of_one_row_are_consecutive_and_free() -> None:
    first = free_ports(1, 3)[0]
    taken = {first - 2, first - 1, first, first + 1, first + 2}
    assert free_ports(1, 3, between=[*taken, first + 3]) == [first + 3]
