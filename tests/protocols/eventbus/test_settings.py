"""The options of the event bus server."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.settings import EventBusSettings


def test_options_are_parsed_from_text() -> None:
    settings = build(EventBusSettings, "eventbus", {"dialect": "decimal", "dedup": "yes", "max-payload": "1MiB"})
    assert settings.dialect is Dialect.DECIMAL
    assert settings.dedup
    assert settings.max_payload == 1 << 20
    keys = build(EventBusSettings, "eventbus", {"server-key": "a.key_secret", "client-keys": "any"})
    assert (keys.server_key, keys.client_keys) == ("a.key_secret", "any")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dialect": "octal"}, "binary or decimal"),
        ({"max-payload": "17MiB"}, "max-payload may be at most 16MiB"),
        ({"max-connections": "0"}, "max-connections must be at least 1"),
        ({"client-keys": "dir"}, "client-keys requires server-key"),
        ({"server-key": "file"}, "server-key requires client-keys"),
    ],
)
def test_invalid_options_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(EventBusSettings, "eventbus", values)
