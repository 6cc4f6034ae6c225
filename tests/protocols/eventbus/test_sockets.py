"""Limits on sockets, and keys from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.auth import create_certificates

from fyrehose.errors import ConfigError
from fyrehose.protocols.eventbus.sockets import Keys, address, client_socket, load_clients, load_public, make_socket


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(0)


def test_socket_has_every_limit(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    router = make_socket(context, zmq.ROUTER, "127.0.0.1", largest=1 << 20, received=7, sent=9)
    assert router.getsockopt(zmq.MAXMSGSIZE) == 1 << 20
    assert (router.getsockopt(zmq.RCVHWM), router.getsockopt(zmq.SNDHWM)) == (7, 9)
    assert router.getsockopt(zmq.LINGER) == 0
    assert router.getsockopt(zmq.HEARTBEAT_IVL) > 0
    assert router.getsockopt(zmq.HANDSHAKE_IVL) == 10_000
    client = client_socket(context, zmq.DEALER, "::1", None, None, sent=3)
    assert client.getsockopt(zmq.SNDHWM) == 3
    assert client.getsockopt(zmq.MECHANISM) == zmq.NULL
    router.close()
    client.close()


def test_client_socket_uses_keys(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    public, secret = zmq.curve_keypair()
    client = client_socket(context, zmq.SUB, "127.0.0.1", public, Keys(public, secret), sent=1)
    assert client.getsockopt(zmq.MECHANISM) == zmq.CURVE
    made_up = client_socket(context, zmq.SUB, "127.0.0.1", public, None, sent=1)
    assert made_up.getsockopt(zmq.MECHANISM) == zmq.CURVE
    client.close()
    made_up.close()


def test_keys_are_loaded_from_files(tmp_path: Path) -> None:
    public_file, secret_file = create_certificates(tmp_path, "server")
    keys = Keys.load(secret_file)
    assert load_public(public_file) == keys.public
    assert load_clients(str(tmp_path)) == {keys.public}
    assert keys.secret.decode() not in repr(keys)


def test_invalid_key_files_are_refused(tmp_path: Path) -> None:
    public_file, _ = create_certificates(tmp_path, "server")
    with pytest.raises(ConfigError, match="has no secret key"):
        Keys.load(public_file)
    with pytest.raises(ConfigError, match="cannot read"):
        Keys.load(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no client key in"):
        load_clients(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="cannot read"):
        load_clients(str(tmp_path / "nowhere"))
    (tmp_path / "short.key").write_text('public-key = "abc"\n')
    with pytest.raises(ConfigError, match="is damaged"):
        load_public(str(tmp_path / "short.key"))


def test_address_is_a_zeromq_endpoint() -> None:
    assert address("127.0.0.1", 5556) == "tcp://127.0.0.1:5556"
    assert address("::1", "*") == "tcp://[::1]:*"
