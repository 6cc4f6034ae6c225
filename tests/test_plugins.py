"""Protocol plugins are found by name; broken and unknown ones are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fyrehose import plugins
from fyrehose.errors import ConfigError


def write(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (directory / "somebodys_plugin").mkdir()
    (directory / "somebodys_plugin" / "plugin.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))
    for name in ("somebodys_plugin", "somebodys_plugin.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_names_are_the_folders_of_protocols_without_importing_them() -> None:
    names = plugins.names()
    assert names == sorted(names)
    folder = Path(plugins.__file__).parent / "protocols"
    assert names == sorted(["admin", *(path.parent.name for path in folder.glob("*/plugin.py"))])


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown protocol 'fig'; expected one of .*figg"):
        plugins.load("fig")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise RuntimeError('no\\nway')", "no way"),
        ("def (", "invalid syntax"),
        ("", "has no attribute 'plugin'"),
        ("plugin = object()", "does not implement|failed to implement"),
    ],
)
def test_a_broken_plugin_is_reported_with_its_reason(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, monkeypatch, text)
    with pytest.raises(ConfigError, match=said) as raised:
        plugins.load("somebodys_plugin.plugin")
    assert "protocol plugin 'somebodys_plugin.plugin' cannot be loaded" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_module_is_reported() -> None:
    with pytest.raises(ConfigError, match="No module named 'nothing_of_that_name'"):
        plugins.load("nothing_of_that_name.plugin")
