"""Protocol plugins are found by name; broken and unknown ones are reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from fyrehose import plugins
from fyrehose.cli import main
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.server.config import resolve

PLUGIN = """
from fyrehose.protocols.figg.plugin import FiggPlugin
plugin = FiggPlugin(name="gelf", description="gelf in another package")
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package with a plugin: its module, and the metadata that pip would write."""

    def installer(text: str, name: str = "gelf", value: str = "somebodys_plugin:plugin") -> None:
        (tmp_path / "somebodys_plugin.py").write_text(text)
        metadata = tmp_path / "somebodys_plugin-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-plugin\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[fyrehose.protocols]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield installer
    sys.modules.pop("somebodys_plugin", None)


def test_names_are_the_folders_of_protocols_without_importing_them() -> None:
    names = plugins.names()
    assert names == sorted(names)
    folder = Path(plugins.__file__).parent / "protocols"
    assert names == sorted(["admin", *(path.parent.name for path in folder.glob("*/plugin.py"))])


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown protocol 'fig'; expected one of .*figg"):
        plugins.load("fig")


def test_a_plugin_of_another_package_has_one_name_everywhere(install: Install, tmp_path: Path) -> None:
    install(PLUGIN)
    assert "gelf" in plugins.names()
    plugin = plugins.load("gelf")
    assert IProtocolPlugin.providedBy(plugin)
    listed = CliRunner().invoke(main, ["protocols", "gelf"], env={"COLUMNS": "200"}).output
    assert "gelf in another package" in listed
    assert "gelf.max-connections" in listed
    config = resolve(data_dir=str(tmp_path), listen=[("gelf", "tcp:0")], options={"gelf": {"max_connections": "5"}})
    (listener,) = config.listeners
    assert (listener.name, listener.plugin, listener.settings.max_connections) == ("gelf", plugin, 5)


def test_a_package_cannot_replace_a_plugin_of_fyrehose(install: Install) -> None:
    install(PLUGIN, "figg")
    assert plugins.load("figg").description != "gelf in another package"
    assert plugins.names().count("figg") == 1


def test_a_plugin_with_another_name_than_its_entry_point_is_refused(install: Install) -> None:
    install(PLUGIN, "gelf-tcp")
    with pytest.raises(ConfigError, match="its attribute 'name' is 'gelf'; use the name of the entry point"):
        plugins.load("gelf-tcp")


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
def test_a_broken_plugin_is_reported_with_its_reason(text: str, said: str, install: Install) -> None:
    install(text)
    with pytest.raises(ConfigError, match=said) as raised:
        plugins.load("gelf")
    assert "protocol plugin 'gelf' (somebodys_plugin:plugin) cannot be loaded" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_module_is_reported(install: Install) -> None:
    install("", value="nothing_of_that_name:plugin")
    with pytest.raises(ConfigError, match="No module named 'nothing_of_that_name'"):
        plugins.load("gelf")


def test_the_package_declares_its_own_plugins() -> None:
    settings = ConfigParser()
    settings.read(Path(plugins.__file__).parents[1] / "setup.cfg")
    declared = settings["options.entry_points"]["fyrehose.protocols"].split("\n")
    assert [line.partition(" = ")[0] for line in declared if line] == plugins.names()
