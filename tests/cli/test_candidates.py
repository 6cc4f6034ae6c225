"""Values that a shell completes, and where they come from."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.interfaces import IClientPlugin


def shown(line: str) -> list[str]:
    """Return the candidates for *line* as bash gets them."""
    environment = {"_FYREHOSE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_BREAKS": ":="}
    result = CliRunner().invoke(main, [], prog_name="fyrehose", env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return [each.partition(",")[2] for each in result.output.splitlines() if each]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fyrehose tail --protocol fi", ["figg"]),
        ("fyrehose protocols lum", ["lumberjack"]),
        ("fyrehose token create --rights sub", ["subscribe="]),
        ("fyrehose serve --option figg.max-p", ["figg.max-per-host=", "figg.max-payload="]),
        ("fyrehose serve --listen figg=tcp:81", ["8119:interface=127.0.0.1"]),
        ("fyrehose serve --durabil", ["--durability"]),
        ("fyrehose serve --config ", [""]),
    ],
)
def test_names_known_to_this_installation_are_completed(line: str, found: list[str]) -> None:
    assert shown(line) == found


def test_only_protocols_with_clients_are_completed_for_client_commands() -> None:
    from fyrehose import plugins

    offered = shown("fyrehose publish --protocol ")
    assert offered == [name for name in plugins.names() if IClientPlugin.providedBy(plugins.load(name))]
