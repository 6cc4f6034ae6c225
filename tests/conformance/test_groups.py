"""Test how `make test` distributes tests to workers: a file to one worker, and all tests with Spark to one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/test_errors.py", "tests/test_records.py", "tests/test_ndjson.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_tests_of_a_file_run_in_one_worker() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider", *FILES]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout
    found = re.findall(r"^\[(gw\d)\] .* PASSED ([^:]+)::", ended.stdout, re.MULTILINE)
    assert {file for _, file in found} == set(FILES)
    assert len(found) > len(FILES)
    assert len(set(found)) == len(FILES), found


def test_files_share_a_group_only_if_their_tests_take_the_spark_session(request: pytest.FixtureRequest) -> None:
    path = str(ROOT / "tests" / "conftest.py")
    conftest = next(
        plugin for plugin in request.config.pluginmanager.get_plugins() if getattr(plugin, "__file__", "") == path
    )
    takes = {file: f"tests/spark/{file}::test_it" for file in ("test_views.py", "jobs/test_archive.py", "test_plan.py")}
    assert {file: conftest.group_of(nodeid) for file, nodeid in takes.items()} == {
        "test_views.py": conftest.SPARK,
        "jobs/test_archive.py": conftest.SPARK,
        "test_plan.py": "tests/spark/test_plan.py",
    }
    listed = [name for name in conftest.LONGEST if not (ROOT / name).exists()]
    assert listed == [], "a file that begins early has another name now"
