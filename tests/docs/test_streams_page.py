"""Check the page about streams against the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fyrehose.broker import streams
from fyrehose.cli.command import main
from fyrehose.protocols.backbone.frames import MAX_DATA
from fyrehose.records import MAX_PAYLOAD
from fyrehose.server import idle
from fyrehose.toml_files import structured

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "streams.md").read_text()


def limits(tables: object) -> streams.StreamRules:
    return streams.limits(structured(list[streams.StreamRule], tables))


def test_the_example_limits_mean_what_the_page_says() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    rules = limits(tomllib.loads(shown)["stream"])
    assert (rules.keep_age("debug.orders"), rules.max_payload("debug.orders")) == (7 * 86400, 64 << 10)
    assert (rules.keep_age("trace.x"), rules.keep_age("orders")) == (86400, 0)
    assert not rules.new_streams("debug.orders")


def test_the_commented_limits_in_the_deployed_configuration_are_valid() -> None:
    text = (ROOT / "deploy" / "fyrehose.toml").read_text().partition("# [[stream]]")
    example = "\n".join(line.removeprefix("# ") for line in (text[1] + text[2]).splitlines())
    assert limits(tomllib.loads(example)["stream"]).max_payload("debug.a") == 64 << 10


def test_every_setting_of_a_table_is_explained() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))
    assert rows == {"name", "keep-age", "max-payload", "new-streams"}


def test_numbers_on_the_page_agree_with_the_code() -> None:
    assert f"{MAX_PAYLOAD >> 20} MiB at the most, {MAX_DATA:,} bytes" in PAGE
    assert f"at most {idle.SLICE} streams retire in a second" in PAGE.lower()
    assert set(main.commands["streams"].commands) == {"list", "retire"}  # type: ignore[attr-defined]
