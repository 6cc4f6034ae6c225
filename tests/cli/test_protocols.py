"""The tables of protocols and options."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from fyrehose import plugins
from fyrehose.cli import main
from fyrehose.options import options_of, typed


def listed(*names: str) -> str:
    result = CliRunner().invoke(main, ["protocols", *names], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.output


def test_every_protocol_is_listed() -> None:
    output = listed()
    for name in plugins.names():
        assert plugins.load(name).default_endpoint in output
        assert plugins.load(name).description in output


def test_missing_packages_are_listed_with_the_extra_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not installed" not in listed()
    for name in ("nacl", "isal", "pyspark"):
        monkeypatch.setitem(sys.modules, name, None)
    _, _, missing = listed().partition("\nnot installed:\n")
    assert missing.splitlines() == [
        "  eventbus encrypts with PyNaCl: pip install 'fyrehose[eventbus]'",
        "  lumberjack inflates two and a half times as fast with isal: pip install 'fyrehose[lumberjack]'",
        "  fyrehose-spark needs pyspark: pip install 'fyrehose[spark]'",
    ]
    assert "not installed" not in listed("figg")
    assert "pip install 'fyrehose[eventbus]'" in listed("eventbus")


@pytest.mark.parametrize("name", plugins.names())
def test_every_option_is_listed(name: str) -> None:
    output = listed(name)
    for field in options_of(plugins.load(name).settings):
        assert f"{name}.{typed(field.name)}" in output
        assert field.metadata["help"] in output
