"""Check that options have one notation: tables, `fyrehose protocols` and errors show what users can type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fyrehose import plugins
from fyrehose.cli import main
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.journal.settings import JournalSettings
from fyrehose.options import LARGEST, build, duration, options_of, shown_value, size
from fyrehose.server.config import ServerSettings, parse_option

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SETTINGS: dict[str, Any] = {
    "journal": JournalSettings,
    "server": ServerSettings,
    "replication": ReplicationSettings,
    **{name: plugins.load(name).settings for name in plugins.names()},
}
#: The scope of the options on pages whose tables name options without a scope.
SCOPES = {
    "cluster.md": "replication",
    **{f"{name}.md": name for name in plugins.names()},
}
#: Options whose default is explained in words, because the value alone says less.
EXPLAINED = {"server.drain", "eventbus.server-key", "eventbus.client-keys"}


def fields(scope: str) -> dict[str, Any]:
    return {field.name.replace("_", "-"): field for field in options_of(SETTINGS[scope])}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each option in a table of the pages: the page, the scope, the name and the default."""
    for page in PAGES:
        column = None
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not cells:
                column = None
            elif cells[0].startswith("option"):
                column = cells.index("default") if "default" in cells and "of `" not in cells[0] else None
            elif column is not None and not cells[0].startswith("---"):
                for text in re.findall(r"`([^`]+)`", cells[0]):
                    if text.startswith("-"):
                        continue
                    scope, _, name = text.rpartition(".")
                    yield page.name, scope or SCOPES.get(page.name, "figg"), name, cells[column]


ROWS = list(rows())


def test_options_on_a_page_are_found() -> None:
    assert len(ROWS) > 80
    assert {scope for _, scope, _, _ in ROWS} >= {"journal", "server", "replication", "figg", "http", "eventbus"}


@pytest.mark.parametrize(("page", "scope", "name", "default"), ROWS)
def test_an_option_in_a_table_on_a_page_is_valid_as_it_stands_there(
    page: str, scope: str, name: str, default: str
) -> None:
    field = fields(scope)[name]
    if f"{scope}.{name}" in EXPLAINED:
        return
    text = default.strip("`")
    assert text == shown_value(field, getattr(SETTINGS[scope](), field.name))


@pytest.mark.parametrize("scope", SETTINGS)
def test_a_value_of_an_option_is_printed_as_users_type_it(scope: str) -> None:
    standard = SETTINGS[scope]()
    for field in fields(scope).values():
        value = getattr(standard, field.name)
        text = shown_value(field, value)
        assert " " not in text
        assert field.metadata["convert"](text) == value if text else value in (None, "", ())


@pytest.mark.parametrize("name", plugins.names())
def test_options_that_the_command_protocols_lists_are_valid_as_they_stand_there(name: str) -> None:
    output = CliRunner().invoke(main, ["protocols", name], env={"COLUMNS": "400"}).output
    listed = re.findall(rf"^{name}\.([\w-]+) +(\S*)  ", output, re.MULTILINE)
    assert [option for option, _ in listed] == list(fields(name))
    typed = [parse_option(f"{name}.{option}={value}") for option, value in listed if value]
    values = {option: value for _, option, value in typed}
    plain = {option: value for option, value in values.items() if not option.startswith(("tls_", "server_key"))}
    assert build(SETTINGS[name], name, plain) == SETTINGS[name]()


@given(st.integers(0, LARGEST))
def test_any_size_is_printed_so_that_it_can_be_typed_again(number: int) -> None:
    field = fields("journal")["keep-bytes"]
    assert size(shown_value(field, number)) == number


@given(st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000))
def test_any_duration_is_printed_so_that_it_can_be_typed_again(seconds: float) -> None:
    field = fields("journal")["keep-age"]
    assert duration(shown_value(field, seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (0.25, "250ms"), (3.2, "3.2s"), (30.0, "30s"), (75.0, "75s"), (300.0, "5m"), (172800.0, "2d")],
)
def test_duration_has_the_largest_unit_that_divides_it(seconds: float, text: str) -> None:
    assert shown_value(fields("journal")["keep-age"], seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1000, "1000"), (4096, "4KiB"), (16 << 20, "16MiB"), ((1 << 30) + 1, "1073741825")]
)
def test_size_has_the_largest_unit_that_divides_it(number: int, text: str) -> None:
    assert shown_value(fields("journal")["keep-bytes"], number) == text


def assignments() -> list[tuple[str, str]]:
    """Return each `SCOPE.NAME=VALUE` and each key of a table of options on the pages."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        found |= {(page.name, each) for each in re.findall(r"(?:--option |-o |`)([a-z/]+\.[a-z_-]+=[^\s`]+)", text)}
        for scope, table in re.findall(r"\[option\.([\w/\"]+)\]\n((?: *[\w-]+ = [^\n]+\n)+)", text):
            pairs = re.findall(r"^ *([\w-]+) = \"?([^\"#\n]+)", table, re.MULTILINE)
            found |= {(page.name, f"{scope.strip(chr(34))}.{name}={value.strip()}") for name, value in pairs}
    return sorted(found)


@pytest.mark.parametrize(("page", "text"), assignments())
def test_an_option_in_a_sentence_or_an_example_file_is_valid(page: str, text: str) -> None:
    scope, name, value = parse_option(text)
    base = scope.partition("/")[0]
    if base not in SETTINGS or value.isupper():  # the option of another program, or a placeholder
        return
    assert "_" not in text.partition("=")[0]
    field = fields(base)[name.replace("_", "-")]
    field.metadata["convert"](value)
