"""Check that each Mermaid diagram has an up-to-date picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "tools" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_diagram_has_its_picture_and_no_picture_is_left(tool: ModuleType) -> None:
    wanted = tool.diagrams(ROOT / "docs")
    assert len(wanted) > 5, "the blocks were recognized"
    drawn = {f"{tool.FOLDER}/{path.name}" for path in (ROOT / "docs" / tool.FOLDER).iterdir()}
    assert wanted.keys() == drawn, "run tools/diagrams.py"


def test_every_state_of_a_diagram_is_in_its_picture(tool: ModuleType) -> None:
    for path, source in tool.diagrams(ROOT / "docs").items():
        picture = (ROOT / "docs" / path).read_text()
        states = {word for line in source.splitlines() if "-->" in line for word in line.split(":")[0].split("-->")}
        assert all(f">{state.strip()}<" in picture for state in states if state.strip() != "[*]"), path


def test_the_digest_of_a_diagram_changes_with_the_diagram(tool: ModuleType) -> None:
    source = "stateDiagram-v2\n    A --> B\n"
    assert tool.picture(source) == tool.picture(source.strip())
    assert tool.picture(source) != tool.picture(source.replace("B", "C"))


def test_labels_of_diagrams_have_no_semicolon(tool: ModuleType) -> None:
    """Mermaid ends a line at a semicolon, and takes the rest for states."""
    assert not [source for source in tool.diagrams(ROOT / "docs").values() if ";" in source]
