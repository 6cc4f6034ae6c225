"""How `make test` distributes tests over workers: each file in one, so that its fixtures are made once."""

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
