"""Check that the protocols' pages show the bytes of the test vectors, and every cause of a closed connection."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fyrehose import errors
from fyrehose.options import options_of
from fyrehose.plugins import load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "protocols"
PROTOCOLS = ["backbone", "eventbus", "figg", "http", "lumberjack", "relink", "syslog"]
#: Calls whose first string is the cause of a refusal.
REFUSING = {"RemoteProtocolError", "refuse", "_refuse"}


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_bytes", Path(__file__).with_name("golden_bytes.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*PROTOCOLS, "relink-wire"])
def test_golden_bytes_are_those_of_the_vectors(name: str, golden: Any) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert golden.redrawn(page) == page, "run tests/docs/golden_bytes.py"


def test_every_table_of_golden_bytes_is_on_a_page(golden: Any) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    assert sorted(golden.marks(pages)) == sorted(golden.TABLES)


def reasons(folder: Path) -> set[str]:
    """Return the causes in the sources of *folder*: words joined by dashes in calls that refuse."""
    return {reason for path in folder.glob("*.py") for reason in _reasons(ast.parse(path.read_text()))}


def _reasons(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            named = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            for word in ast.walk(call) if named in REFUSING else ():
                if isinstance(word, ast.Constant) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", str(word.value)):
                    yield str(word.value)


def named_on(*pages: str) -> set[str]:
    """Return everything in code marks on *pages*."""
    return {word for page in pages for word in re.findall(r"`([^`\n]+)`", (PAGES / f"{page}.md").read_text())}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_reason_of_a_protocol_is_on_its_page(name: str) -> None:
    found = reasons(ROOT / "fyrehose" / "protocols" / name)
    assert len(found) > 3, "the calls were recognized"
    assert found <= named_on(name, "closing"), found - named_on(name, "closing")


def test_every_reason_of_all_tcp_protocols_is_on_their_page() -> None:
    found = reasons(ROOT / "fyrehose" / "net")
    assert len(found) > 5, "the calls were recognized"
    assert found <= named_on("closing"), found - named_on("closing")


def test_every_error_of_a_publish_is_on_the_page() -> None:
    kinds = {
        name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PublishError)
    }
    assert kinds - {"PublishError"} <= named_on("closing")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_option_of_a_protocol_is_on_its_page(name: str) -> None:
    """The TLS options are explained in docs/operating.md for all protocols."""
    options = {field.name.replace("_", "-") for field in options_of(load(name).settings)}
    text = "".join((PAGES / f"{page}.md").read_text() for page in (name, "closing"))
    written = {word.replace("_", "-") for word in re.findall(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", text)}
    missing = {option for option in options - written if not option.startswith("tls-")}
    assert not missing
