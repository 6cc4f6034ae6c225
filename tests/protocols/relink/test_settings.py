"""The options of the protocol."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build
from fyrehose.protocols.relink.settings import RelinkSettings


def test_options_become_limits() -> None:
    limits = build(RelinkSettings, "relink", {"window": "7", "max-payload": "1MiB"}).limits
    assert (limits.window, limits.message_size) == (7, 1 << 20)


@pytest.mark.parametrize(
    "wrong",
    [{"max-payload": "0"}, {"max-payload": "17MiB"}, {"window": "0"}, {"window": "2147483648"}],
)
def test_invalid_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="options of relink"):
        build(RelinkSettings, "relink", wrong)
