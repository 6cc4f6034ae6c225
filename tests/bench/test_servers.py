"""Command lines, and servers that do not start."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fyrehose.bench.cases import CASES
from fyrehose.bench.servers import CannotStart, fyrehose_version, fyrehose_words, spawn
from fyrehose.server.config import parse_listen, parse_option, resolve


@pytest.mark.parametrize("protocol", sorted({case.protocol for case in CASES} - {"journal"}))
def test_server_accepts_the_options_of_every_protocol(protocol: str, tmp_path: Path) -> None:
    words = fyrehose_words(tmp_path, protocol, "batch")
    said = [(name, value) for name, value in pairwise(words) if name.startswith("--")]
    options: dict[str, dict[str, str]] = {}
    for name, value in said:
        if name == "--option":
            scope, key, text = parse_option(value)
            options.setdefault(scope, {})[key] = text
    config = resolve("d", [parse_listen(value) for name, value in said if name == "--listen"], options)
    assert [listener.name for listener in config.listeners] == [protocol]


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no-such-program cannot be run"):
        spawn(tmp_path, ["no-such-program"])


def test_error_of_a_server_that_fails_to_start_has_the_output_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="the port is taken"):
        spawn(tmp_path, [sys.executable, "-c", "print('the port is taken')"], lambda said: "serving" in said)


def test_every_contestant_has_a_version() -> None:
    assert fyrehose_version().endswith(" kernels")
