"""The options of the backbone server."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import build, networks
from fyrehose.protocols.backbone.settings import BackboneSettings


def test_options_are_parsed_from_text() -> None:
    settings = build(
        BackboneSettings,
        "backbone",
        {
            "stream": "news",
            "subscribers": "7",
            "push-rate": "1000000",
            "destination-rate": "1GiB",
            "trusted": "127.0.0.1,10.0.0.0/8",
            "total_length": True,
        },
    )
    assert settings == BackboneSettings(
        stream="news",
        subscribers=7,
        push_rate=1_000_000,
        destination_rate=1 << 30,
        trusted=networks("127.0.0.1/32,10.0.0.0/8"),
        total_length=True,
    )


def test_defaults_match_the_documentation() -> None:
    settings = BackboneSettings()
    assert (settings.stream, settings.subscribers) == ("backbone", 1_024)
    assert (settings.push_rate, settings.request_rate) == (50_000, 100_000)
    assert settings.trusted == networks("127.0.0.0/8")
    assert settings.destination_rate == 64 << 20


@pytest.mark.parametrize("key", ["subscribers", "push_rate", "destination_rate"])
def test_limit_of_zero_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key.replace('_', '-')} must be at least 1, not 0"):
        build(BackboneSettings, "backbone", {key: "0"})


def test_no_network_is_trusted_if_none_is_named() -> None:
    assert build(BackboneSettings, "backbone", {"trusted": ""}).trusted == ()
