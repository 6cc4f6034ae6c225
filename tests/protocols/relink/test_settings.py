"""The options of the protocol."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build
from fyrehose.protocols.relink.settings import RelinkSettings


def test_options_become_limits() -> None:
    limits = build(RelinkSettings, "relink", {"backlog": "5", "window": "7", "max-message": "1MiB"}).limits
    assert (limits.backlog, limits.window, limits.message_size) == (5, 7, 1 << 20)


@pytest.mark.parametrize(
    "wrong",
    [{"max-message": "0"}, {"max-message": "17MiB"}, {"window": "0"}, {"window": "2147483648"}, {"backlog": "0"}],
)
def test_invalid_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="options of relink"):
        build(RelinkSettings, "relink", wrong)
