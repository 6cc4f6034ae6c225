"""Check that the page on the architecture names every module in its section, and no module that does not exist."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fyrehose"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
#: The section of the page for each folder; jobs and kernels are described as a whole.
SECTIONS = {
    "": "## The top level",
    "broker": "## `broker`",
    "journal": "## `journal`",
    "offline": "## `offline`",
    "cluster": "## `cluster`",
    "subscriptions": "## `subscriptions`",
    "net": "## `net` and `web`",
    "web": "## `net` and `web`",
    "server": "## `server`",
    "observe": "## `observe` and `admin`",
    "admin": "## `observe` and `admin`",
    "cli": "## `cli`",
    "cli/client": "## `cli`",
    "cli/journal": "## `cli`",
    "cli/cluster": "## `cli`",
    "cli/doctor": "## `cli`",
    "spark": "## `spark`",
}


def section(folder: str) -> str:
    """Return the part of the page that describes *folder*."""
    heading = SECTIONS[folder]
    text = PAGE.partition(f"\n{heading}")[2]
    assert text, heading
    return re.split(r"\n##+ ", text, maxsplit=1)[0]


def named(text: str) -> set[str]:
    return set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))


def modules(folder: str) -> set[str]:
    return {path.name for path in PACKAGE.joinpath(folder).glob("[!_]*.py")}


@pytest.mark.parametrize("folder", SECTIONS)
def test_every_module_is_in_the_section_of_its_package(folder: str) -> None:
    assert modules(folder) - named(section(folder)) == set()


def test_every_module_of_a_protocol_is_in_the_template_or_in_the_row_of_its_folder() -> None:
    template = named(PAGE.partition("Each folder has the same files:")[2].partition("The other modules")[0])
    assert template
    folders = [path.name for path in PACKAGE.joinpath("protocols").iterdir() if (path / "plugin.py").exists()]
    for folder in folders:
        (row,) = re.findall(rf"^\| `{folder}` \| .*$", PAGE, re.MULTILINE)
        assert modules(f"protocols/{folder}") - template == named(row), folder


def test_the_page_names_no_module_that_does_not_exist() -> None:
    existing = {path.name for path in PACKAGE.rglob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", PAGE)) - existing == set()
    paths = re.findall(r"`([a-z]+/\w+\.py)`", PAGE)
    assert [
        path
        for path in paths
        if not (PACKAGE / path).is_file() and not (PACKAGE / "cli" / path).is_file() and not (ROOT / path).is_file()
    ] == []


def test_the_table_of_layers_is_that_of_the_test() -> None:
    spec = spec_from_file_location("layers", ROOT / "tests" / "test_layers.py")
    assert spec is not None
    assert spec.loader is not None
    layers = module_from_spec(spec)
    spec.loader.exec_module(layers)
    rows = re.findall(r"^\| \d \| (.*) \|$", PAGE, re.MULTILINE)
    assert [tuple(re.findall(r"`([\w/]+)`", row)) for row in rows] == [
        tuple(name.replace(".", "/") for name in names) for names in layers.LAYERS
    ]
