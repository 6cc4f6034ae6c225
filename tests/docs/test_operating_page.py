"""Check the page for operators against the code: its example files are valid, and its tables are complete.

tests/live/test_policy.py runs its commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fyrehose import plugins
from fyrehose.broker.policy import load
from fyrehose.identity import Action, Identity
from fyrehose.journal.settings import JournalSettings
from fyrehose.net.tls import TLSSettings
from fyrehose.options import options_of
from fyrehose.server.config import ServerSettings, read_file, resolve
from fyrehose.server.tap import Options

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
README = (ROOT / "README.md").read_text()


def test_every_option_of_the_server_is_in_both_tables() -> None:
    flags = [flag for flag, *_ in [*Options.optParameters, *Options.optFlags]] + ["listen", "option"]
    for page in (PAGE, README):
        rows = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
        assert [flag for flag in flags if f"--{flag}" not in rows] == []


def test_every_option_of_the_journal_and_of_the_server_is_in_the_table() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for scope, settings in (("journal", JournalSettings), ("server", ServerSettings)):
        names = {f"{scope}.{field.name.replace('_', '-')}" for field in options_of(settings)}
        assert {name for name in names if f"`{name}`" not in rows} == set()


def test_every_option_of_tls_is_in_the_table() -> None:
    names = {field.name.replace("_", "-") for field in options_of(TLSSettings) if field.name.startswith("tls_")}
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert {name for name in names if f"`{name}`" not in rows} == set()


def test_every_protocol_is_in_the_table_of_refusals() -> None:
    table = PAGE.partition("| protocol | not allowed to publish |")[2].partition("\n\n")[0]
    protocols = set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE))
    assert protocols == set(plugins.names()) - {"admin"}, "the admin listener has a token of its own"


def test_the_policy_on_the_page_can_be_loaded(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(\[\[allow\]\].*?)```", PAGE, re.DOTALL)
    path = tmp_path / "policy.toml"
    path.write_text(shown)
    policy = load(path)
    assert policy.allows(Identity(), Action.SUBSCRIBE, "anything")
    beat = Identity(host="10.1.2.3", certificates=("beats-7",))
    assert policy.allows(beat, Action.PUBLISH, "logs.web")
    assert not policy.allows(beat, Action.SUBSCRIBE, "logs.web")


def test_the_configuration_on_the_page_can_be_read(tmp_path: Path) -> None:
    shown = PAGE.partition("in a file:\n")[2].partition("\nIf the command line")[0]
    path = tmp_path / "fyrehose.toml"
    path.write_text("\n".join(line.removeprefix("    ") for line in shown.splitlines()))
    found = read_file(path)
    assert (found.data_dir, found.policy, found.log_format) == (
        "/var/lib/fyrehose",
        "/etc/fyrehose/policy.toml",
        "text",
    )
    assert [listener.name for listener in resolve("data", found.listen, found.options).listeners] == [
        "figg",
        "backbone",
    ]


@pytest.mark.parametrize("name", ["deploy", "docker"])
def test_the_deployed_configuration_and_policy_work_together(name: str) -> None:
    folder = ROOT / "deploy" if name == "deploy" else ROOT / "deploy" / "docker"
    found = read_file(folder / "fyrehose.toml")
    config = resolve("data", found.listen, found.options, str(ROOT / "deploy" / "policy.toml"))
    assert found.policy == "/etc/fyrehose/policy.toml"
    assert len(config.listeners) >= 5
    assert config.policy.allows(Identity(), Action.PUBLISH, "s")
    assert not config.policy.allows(Identity(host="10.0.0.1"), Action.PUBLISH, "s")
