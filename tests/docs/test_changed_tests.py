"""Test how ``make check`` chooses the tests of changed files."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "changed_tests.py"


#: The tests of a package whose schedules run, too.
SCHEDULES = "tests/verification/consumers/test_tables.py::test_random_schedules_of_whole_tables_break_no_rule"
RESENT = (
    "tests/verification/resent/test_resent_schedules.py"
    "::test_random_schedules_lose_nothing_and_store_no_event_with_an_identity_twice"
)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = spec_from_file_location("changed_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("fyrehose/options.py", ["tests/test_options.py"]),
        ("fyrehose/net/tcp.py", ["tests/net"]),
        ("fyrehose/protocols/relink/link.py", ["tests/protocols/relink"]),
        ("fyrehose/net/without_tests.py", ["tests/net"]),
        ("fyrehose/offline/mirror.py", ["tests/offline", "tests/journal/test_ends.py"]),
        ("fyrehose/kernels/native/figg.pyx", ["tests/kernels/test_figg.py", "tests/protocols/figg"]),
        ("benchmarks/table.py", ["tests/benchmarks"]),
        ("tests/net/conftest.py", ["tests/net"]),
        ("tests/net/test_tcp.py", ["tests/net/test_tcp.py"]),
        ("tests/net/test_deleted.py", []),
        ("tests/conftest.py", []),
        ("tests/live/test_figg.py", []),
        ("fyrehose/spark/lake.py", ["tests/spark/test_plan.py", "tests/spark/typed", "tests/spark/test_lake.py"]),
        ("fyrehose/subscriptions/lane.py", ["tests/subscriptions", SCHEDULES]),
        ("fyrehose/protocols/lumberjack/resent.py", ["tests/protocols/lumberjack", RESENT]),
        ("docs/index.md", []),
        ("fyrehose/without_tests.py", ["tests/test_options.py"]),
    ],
)
def test_changed_file_has_the_tests_of_its_package(script: Any, changed: str, tests: list[str], tmp_path: Path) -> None:
    for path in (
        *("tests/test_options.py", "tests/net/test_tcp.py", "tests/protocols/relink/test_link.py"),
        *("tests/kernels/test_figg.py", "tests/protocols/figg/test_server.py", "tests/benchmarks/test_table.py"),
        *("tests/live/test_figg.py", "tests/spark/test_plan.py", "tests/spark/test_lake.py"),
        *("tests/offline/test_mirror.py", "tests/journal/test_ends.py"),
        "tests/spark/typed/test_config.py",
        *("tests/subscriptions/test_lane.py", "tests/verification/consumers/test_tables.py"),
        *("tests/protocols/lumberjack/test_resent.py", RESENT.partition("::")[0]),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert script.of_file(changed, tmp_path) == tests


def test_file_within_a_selected_folder_is_not_named_twice(script: Any, tmp_path: Path) -> None:
    (tmp_path / "tests/net").mkdir(parents=True)
    (tmp_path / "tests/net/test_tcp.py").touch()
    paths = ["fyrehose/net/tcp.py", "fyrehose/net/without_tests.py"]
    assert script.selection(paths, tmp_path) == [*sorted(script.ALWAYS[1:]), "tests/net", "tests/test_layers.py"]


def test_every_changed_file_of_this_checkout_has_existing_tests(script: Any) -> None:
    root = SCRIPT.parents[1]
    modules = [str(path.relative_to(root)) for path in (root / "fyrehose").rglob("*.py")]
    chosen = script.selection(modules)
    assert len(chosen) > 10
    assert [each for each in chosen if not (root / each.partition("::")[0]).exists()] == []
    named = [each.split("::") for each in chosen if "::" in each]
    assert [name for path, name in named if f"def {name}(" not in (root / path).read_text()] == []
