"""Stale sockets of the file system are removed, and inherited ones are checked."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

from fyrehose.net.sockets import check_adopted, notice_dead_peer, remove_stale_socket


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


@pytest.mark.parametrize(("allowed_s", "found_after_ms"), [(0.3, 40_000), (40.0, 40_000), (300.0, 300_000)])
@pytest.mark.parametrize("encrypted", [False, True])
def test_dead_peer_of_a_tcp_connection_is_found(encrypted: bool, allowed_s: float, found_after_ms: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            transport: Any = Connection(accepted, None)
            if encrypted:
                wrapper: Any = ProtocolWrapper(WrappingFactory(Factory()), Protocol())
                wrapper.transport = transport
                notice_dead_peer(wrapper, allowed_s)
            else:
                notice_dead_peer(transport, allowed_s)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert option(accepted, socket.TCP_KEEPIDLE) + option(accepted, socket.TCP_KEEPINTVL) <= 45
            assert option(accepted, socket.TCP_USER_TIMEOUT) == found_after_ms


def test_connections_without_tcp_are_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        notice_dead_peer(Connection(ours, None), 0.0)
        notice_dead_peer(StringTransport(), 0.0)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_a_stale_unix_socket_is_removed(tmp_path: Path) -> None:
    path, lock = tmp_path / "figg", tmp_path / "figg.lock"
    lock.symlink_to(str(os.getpid()))  # in a container, the killed process had our number
    remove_stale_socket(str(path))
    assert not lock.is_symlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        lock.symlink_to(str(os.getpid()))
        remove_stale_socket(str(path))
        assert path.exists()
        assert lock.is_symlink(), "somebody listens"
    remove_stale_socket(str(path))
    assert list(tmp_path.iterdir()) == []


def test_other_files_than_unix_sockets_are_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    remove_stale_socket(str(path))
    remove_stale_socket("\0abstract")
    assert path.read_text() == "x"


def test_inherited_descriptor_that_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    inet, unix = socket.AF_INET, socket.AF_UNIX
    with socket.create_server(("127.0.0.1", 0)) as good, socket.socket() as idle, (tmp_path / "f").open("w") as file:
        check_adopted(good.fileno(), inet)
        assert good.fileno() >= 0, "it was looked at, and stays open"
        for descriptor, family, said in (
            (good.fileno(), unix, "use domain=INET"),
            (idle.fileno(), inet, "does not listen"),
            (file.fileno(), inet, "is not a socket"),
        ):
            with pytest.raises(OSError, match=said):
                check_adopted(descriptor, family)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        with pytest.raises(OSError, match="use domain=UNIX"):
            check_adopted(ours.fileno(), inet)
        with pytest.raises(OSError, match="ListenStream="):
            check_adopted(datagrams.fileno(), inet)
