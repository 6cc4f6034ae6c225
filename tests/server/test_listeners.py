"""The listeners of a server: which are refused, and what operators see of them."""

from __future__ import annotations

from random import Random

import attrs
import pytest
from twisted.internet.testing import MemoryReactorClock

from fyrehose import plugins
from fyrehose.errors import ConfigError
from fyrehose.net.connections import connections_within
from fyrehose.server.config import Config, ListenerConfig, resolve
from fyrehose.server.listeners import Listeners, check_guarded, key_of
from fyrehose.server.service import Fyrehose
from fyrehose.testing import MemoryJournal


def configured(*listen: tuple[str, str]) -> Config:
    return resolve("data", listen, {})


@pytest.mark.parametrize(
    ("name", "endpoint", "guarded"),
    [
        ("figg", "tcp:8119:interface=127.0.0.1", True),
        ("figg", "systemd:domain=INET:name=figg", True),
        ("admin", "tcp:8118", True),
        ("figg", "tcp:8119", False),
    ],
)
def test_a_listener_that_other_machines_can_reach_needs_a_policy(name: str, endpoint: str, guarded: bool) -> None:
    config = configured((name, endpoint))
    (listener,) = config.listeners
    if guarded:
        check_guarded(listener, config)
    else:
        with pytest.raises(ConfigError, match="refusing to listen on a public address"):
            check_guarded(listener, config)


def test_each_listener_gets_as_many_connections_as_descriptors_permit() -> None:
    listeners, dice = Listeners(MemoryReactorClock(), Fyrehose(MemoryReactorClock(), MemoryJournal())), Random(1)
    for _ in range(300):
        wanted = [dice.randrange(1, 30) for _ in range(dice.randrange(1, 5))]
        config = configured(*((f"figg/{number}", "unix:/run/figg") for number in range(len(wanted))))
        made = [
            attrs.evolve(each, settings=attrs.evolve(each.settings, max_connections=most))
            for each, most in zip(config.listeners, wanted, strict=True)
        ]
        available = dice.randrange(400)
        total = connections_within(available, len(wanted))
        share = max(most for most in range(1, 31) if sum(min(most, each) for each in wanted) <= total)
        found = [each.settings.max_connections for each in listeners.within_descriptors(made, available)]
        assert found == [min(share, each) for each in wanted], f"of {total} connections, {wanted} are wanted"


def test_operators_see_the_present_settings_of_a_listener_after_a_reload() -> None:
    reactor = MemoryReactorClock()
    listeners = Listeners(reactor, Fyrehose(reactor, MemoryJournal()))
    config = configured(("lumberjack", "tcp:1:interface=127.0.0.1"), ("figg", "tcp:2:interface=127.0.0.1"))
    for listener in config.listeners:
        listeners.add(listener, listeners.make(listener, config))
    shown = listeners.fyrehose.broker.listeners
    assert [each.name for each in shown] == ["lumberjack", "figg"]
    first: ListenerConfig = config.listeners[0]
    other = attrs.evolve(first, settings=plugins.load("lumberjack").settings(stream="other"))
    listeners.show(other, listeners.open[key_of(first)].service)
    assert [(each.name, each.stream) for each in shown] == [("lumberjack", "other"), ("figg", None)]
    listeners.forget(key_of(first))
    assert [each.name for each in shown] == ["figg"]
