"""Commands with the addresses of several servers go to the next one each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.internet.protocol import ClientFactory
from twisted.internet.testing import MemoryReactorClock

from fyrehose.cli import encrypting
from fyrehose.cli.command import Places, main
from fyrehose.cli.contacts import TIMES
from fyrehose.cli.encrypting import Encrypted
from fyrehose.cli.servers import ROUNDS, server
from fyrehose.cli.several import Several
from fyrehose.errors import ConfigError
from fyrehose.testing.certificates import Authority


def test_each_connection_goes_to_the_next_server() -> None:
    reactor = MemoryReactorClock()
    several = Several([(reactor, "10.0.0.1", 1), (reactor, "10.0.0.2", 2), (reactor, "10.0.0.3", 3)])
    for _ in range(4):
        several.connectTCP("10.0.0.1", 1, ClientFactory(), timeout=5)
    assert [(host, port) for host, port, *_ in reactor.tcpClients] == [
        ("10.0.0.1", 1),
        ("10.0.0.2", 2),
        ("10.0.0.3", 3),
        ("10.0.0.1", 1),
    ]
    assert several.seconds() == reactor.seconds()


def test_addresses_are_separated_by_commas() -> None:
    found = Places().convert("10.0.0.1, 10.0.0.2:9,[::1]:7", None, None)
    assert found == (("10.0.0.1", None), ("10.0.0.2", 9), ("::1", 7))
    assert "expected HOST:PORT" in CliRunner().invoke(main, ["publish", "--to", "a:1,b:x", "x"]).output


def test_followers_that_close_connections_do_not_count_as_a_refusal_at_once() -> None:
    at = server("figg", ("10.0.0.1", None), others=[("10.0.0.2", 9), ("::1", None)])
    assert at.contacts.name == "figg at 10.0.0.1:8119, 10.0.0.2:9, [::1]:8119"
    assert at.contacts.times == 3 * ROUNDS * TIMES
    assert server("figg", ("10.0.0.1", None)).contacts.times == TIMES


@pytest.mark.parametrize("protocol", ["backbone", "eventbus"])
def test_protocols_with_other_connections_take_one_address(protocol: str) -> None:
    at = server(protocol, ("10.0.0.1", None), others=[("10.0.0.2", None)])
    with pytest.raises(ConfigError, match=f"protocol {protocol} takes one address"):
        at.publisher(MemoryReactorClock(), None, 1)


def test_the_certificate_of_each_server_is_checked_for_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    class Watched(Encrypted):
        def __init__(self, reactor: Any, host: str, paths: tuple[str, ...]) -> None:
            checked.append(host)
            super().__init__(reactor, host, paths)

    monkeypatch.setattr(encrypting, "Encrypted", Watched)
    at = server("figg", ("one.test", 1), Authority(tmp_path).certificate, [("two.test", 2)])
    at.publisher(MemoryReactorClock(), "s", 1)
    assert sorted(checked) == ["one.test", "two.test"]
