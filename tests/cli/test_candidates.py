"""Values that a shell completes: where they come from, and that nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.cli import main
from fyrehose.cli.candidates import MOST, WAIT, completed
from fyrehose.cli.client.remote import RemoteServer
from fyrehose.errors import FyrehoseError
from fyrehose.interfaces import IClientPlugin, IJournalObserver, JournalState
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Run

OPTION = click.Option(["--stream"])


@implementer(IJournalObserver)
class Nobody:
    def durable(self, ends: Mapping[str, int]) -> None:
        pass

    def state_changed(self, state: JournalState, reason: str) -> None:
        pass


def shown(line: str) -> list[str]:
    """Return the candidates for *line* as bash gets them."""
    environment = {"_FYREHOSE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_BREAKS": ":=", WAIT: "60s"}
    result = CliRunner().invoke(main, [], prog_name="fyrehose", env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return [each.partition(",")[2] for each in result.output.splitlines() if each]


def values(*found: str) -> list[str]:
    complete = completed(lambda ctx, incomplete: iter(found), patience_s=60)
    return [item.value for item in complete(click.Context(main), OPTION, "a")]


def test_completed_values_begin_with_the_typed_text() -> None:
    assert values("ab", "ba", "a") == ["ab", "a"]


def test_values_that_no_terminal_can_show_are_left_out() -> None:
    assert values("a\nplain,b", "a\x1b[2J", "ok", "all") == ["all"]


def test_number_of_completed_values_is_limited() -> None:
    assert len(values(*("a" * (1 + n) for n in range(2 * MOST)))) == MOST


def test_values_that_arrive_in_time_are_completed() -> None:
    never = threading.Event()

    def slow(ctx: click.Context, incomplete: str) -> Iterator[str]:
        yield "first"
        never.wait(60)
        yield "last"

    items = completed(slow, patience_s=0.05)(click.Context(main), OPTION, "")
    never.set()
    assert [item.value for item in items] == ["first"]


@pytest.mark.parametrize(("wait", "found"), [("60s", ["first", "last"]), ("nonsense", ["first"])])
def test_environment_variable_lengthens_the_wait_for_values(
    wait: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def slow(ctx: click.Context, incomplete: str) -> Iterator[str]:
        yield "first"
        answered.wait(60 if wait == "nonsense" else 0)
        yield "last"

    monkeypatch.setenv(WAIT, wait)
    items = completed(slow, patience_s=0.05)(click.Context(main), OPTION, "")
    answered.set()
    assert [item.value for item in items] == found


def test_no_values_are_completed_after_an_error() -> None:
    def failing(ctx: click.Context, incomplete: str) -> Iterator[str]:
        yield "first"
        raise FyrehoseError("refused")

    assert [item.value for item in completed(failing, patience_s=60)(click.Context(main), OPTION, "")] == ["first"]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("fyrehose tail --stream ", "http://127.0.0.1:8117"),
        ("fyrehose tail --from db --stream ", "http://db:8117"),
        ("fyrehose tail --from db:7 --stream ", "http://db:7"),
        ("fyrehose tail --from [::1]:7 --protocol http --stream ", "http://[::1]:7"),
        ("fyrehose tail --from db:7 --protocol figg --stream ", "http://db:8117"),
        ("fyrehose publish --to a,b --stream ", "http://a:8117"),
        ("fyrehose streams ", "list retire"),
        ("fyrehose streams --url http://h:1 ", "http://h:1"),
        ("fyrehose streams retire --url http://h:2 ", "http://h:2"),
        ("fyrehose work --url http://h:3 --stream ", "http://h:3"),
        ("fyrehose subscriptions show --url http://h:4 ", "http://h:4"),
    ],
)
def test_values_come_from_the_server_that_the_command_line_names(
    line: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(self: RemoteServer, *args: object) -> list[str]:
        return [self.url]

    monkeypatch.setattr(RemoteServer, "stream_names", names)
    monkeypatch.setattr(RemoteServer, "streams", lambda self, *args: {"listed": [{"name": self.url}]})
    monkeypatch.setattr(RemoteServer, "subscriptions", lambda self: [{"name": self.url, "kind": "stream"}])
    found = " ".join(shown(line)).replace("\\", "")
    assert found == asked or asked in found.split() or found.split()[:2] == asked.split()


@pytest.mark.parametrize("streams", [2, 600])  # a few are listed in each segment, many in a snapshot
def test_names_in_the_journals_files_are_completed(streams: int, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    settings = JournalSettings(min_free=0, segment_size=4096)
    journal = FileJournal(Clock(), directory, settings, worker=InlineWorker())
    journal.open(Nobody())
    for number in range(streams):
        journal.append([Run.of(f"jobs.{number}" if number else "logs.web", [b"x" * 100], source="test")], [1])
    journal.close()
    assert len(scan.segments(directory)) > 1 or streams == 2
    subscriptions.update(directory, "archive", 0)
    assert shown(f"fyrehose journal dump {directory} --stream l") == ["logs.web"]
    assert shown(f"fyrehose journal subscriptions {directory} --delete a") == ["archive"]
    assert shown("fyrehose journal dump nowhere --stream l") == []


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
