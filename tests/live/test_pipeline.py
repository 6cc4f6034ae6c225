"""Run the commands of docs/pipelines.md, from a server that stores events to a plot of the table "gold"."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.live.conftest import ran

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text()


def test_commands_of_the_page_fill_tables_from_a_running_server(start: Callable[..., Any], tmp_path: Path) -> None:
    server = start("--data-dir", "data", "--listen", "lumberjack=tcp:0:interface=127.0.0.1")
    (block,) = (
        found for found in re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "make run" in found
    )
    serve, install, publish, fill, plot = block.splitlines()
    assert serve.startswith("make run ")
    assert "pip install" in install
    # The same programs, of this environment; the server listens on a free port.
    programs = {"python": sys.executable}
    for name, module in (("fyrehose", "fyrehose.cli"), ("fyrehose-spark", "fyrehose.cli.spark")):
        programs[name] = f"{sys.executable} -c 'from {module} import main; main()'"
    publish = publish.replace("20000", "2000") + f" --to 127.0.0.1:{server.port('lumberjack')}"
    shutil.copytree(ROOT / "examples" / "pipeline", tmp_path / "examples" / "pipeline")
    for command in (publish, fill, plot):
        command = re.sub(r"\.venv/bin/([\w-]+)", lambda found: programs[found[1]], command)
        ran("sh", "-c", command, cwd=tmp_path, timeout=None)
    events = DeltaTable(str(tmp_path / "tables" / "filebeat")).to_pyarrow_table()
    assert sorted(events["_seq"].to_pylist()) == list(range(1, 2001))
    assert events["message"].null_count == 0
    (shown,) = re.findall(r"^```python\n(.*?DeltaTable\(\"tables/requests\".*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert "window" in ran(sys.executable, "-c", shown, cwd=tmp_path, timeout=None).stdout
    requests = DeltaTable(str(tmp_path / "tables" / "requests")).to_pyarrow_table()
    assert sum(requests["requests"].to_pylist()) == 2000 - events["status"].null_count
    assert (tmp_path / "gold.png").read_bytes().startswith(b"\x89PNG")
