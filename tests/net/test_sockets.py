"""Stale sockets of the file system are removed, and inherited ones are checked."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fyrehose.net.sockets import check_adopted, remove_stale_socket


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
