"""The options, from text."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.settings import Settings, Syntax


def test_from_text() -> None:
    settings = build(
        Settings,
        "eventbus",
        {"sequence": "decimal", "subtrees": "reference", "dedup": "yes", "max-payload": "1MiB"},
    )
    assert settings.sequence is Dialect.DECIMAL
    assert settings.subtrees is Syntax.REFERENCE
    assert settings.dedup
    assert settings.max_payload == 1 << 20
    keys = build(Settings, "eventbus", {"server-key": "a.key_secret", "client-keys": "any"})
    assert (keys.server_key, keys.client_keys) == ("a.key_secret", "any")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sequence": "octal"}, "binary or decimal"),
        ({"subtrees": "no"}, "text or reference"),
        ({"snapshots": "0"}, "snapshots must be at least 1"),
        ({"max-payload": "17MiB"}, "max_payload has to be 16777216 at the most"),
        ({"max-connections": "0"}, "max_connections must be at least 1"),
        ({"client-keys": "dir"}, "client_keys need a server_key"),
        ({"server-key": "file"}, "server_key needs client_keys"),
    ],
)
def test_what_cannot_be(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(Settings, "eventbus", values)
