"""Parsing the options of the journal."""

from __future__ import annotations

import pytest

from fyrehose.errors import ConfigError
from fyrehose.journal.settings import Durability, JournalSettings, durability
from fyrehose.options import build


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("batch", Durability("batch")),
        ("never", Durability("never")),
        ("interval:50", Durability("interval", 0.05)),
        ("interval:1500ms", Durability("interval", 1.5)),
    ],
)
def test_durability_is_parsed(text: str, meant: Durability) -> None:
    assert durability(text) == meant
    assert durability(str(meant)) == meant


@pytest.mark.parametrize("text", ["", "always", "interval", "interval:", "interval:0", "interval:-5", "interval:5s"])
def test_invalid_durability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="batch, never, or interval:MS"):
        durability(text)


def test_the_defaults_are_the_safe_ones() -> None:
    settings = build(JournalSettings, "journal", {})
    assert settings == JournalSettings()
    assert settings.durability.mode == "batch"
    assert not settings.quarantine
    assert settings.keep_bytes == settings.keep_age == 0
    assert (settings.segment_size, settings.min_free, settings.verify) == (64 << 20, 256 << 20, 256 << 20)
    assert (settings.subscription_timeout, settings.subscription_bytes) == (2 * 24 * 3600, 16 << 30)


def test_a_segment_has_at_least_a_kib() -> None:
    assert build(JournalSettings, "journal", {"segment-size": "1024"}).segment_size == 1024
    with pytest.raises(ConfigError, match="segment-size must be at least 1KiB, not 1023"):
        build(JournalSettings, "journal", {"segment-size": "1023"})
