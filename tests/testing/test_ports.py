"""Ports that are chosen before a server listens."""

from __future__ import annotations

import random
import socket

import pytest

from fyrehose.testing.ports import free_port, free_ports


def test_ports_are_different_and_not_those_that_the_kernel_gives_out() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(10_000 <= port < 32_000 for port in ports)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_used_ports_and_excluded_ones_are_passed_over(kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch) -> None:
    used, excluded, free = free_ports(3)
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", used))
        drawn = iter([used, excluded, free])
        monkeypatch.setattr(random, "randrange", lambda low, high: next(drawn))
        assert free_ports(1, (excluded,)) == [free]


def test_port_is_chosen_anew_each_time() -> None:
    assert len({free_port() for _ in range(5)}) > 1
