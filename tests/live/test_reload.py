"""Reload the configuration of a real running server with the command for it."""

from __future__ import annotations

import errno
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import PATIENCE, fyrehose, until

pytestmark = pytest.mark.live


def reload(directory: Path) -> subprocess.CompletedProcess[str]:
    return fyrehose("reload", "--data-dir", directory / "data", "--timeout", f"{PATIENCE:g}s", status=None)


def post(port: int, size: int) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/streams/s", b"x" * size, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def refuses(port: int) -> bool:
    """Return whether nothing listens at *port*."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_reload_changes_a_running_server(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "fyrehose.toml"
    http, figg = '[listen]\nhttp = "tcp:0:interface=127.0.0.1"\n', 'figg = "tcp:0:interface=127.0.0.1"\n'
    file.write_text(http)
    server = start("--config", str(file))
    port = server.port("http")
    assert post(port, 2_000) == 200
    file.write_text(f'{http}{figg}[option.http]\nmax-payload = "1KiB"\n[option.journal]\ndurability = "never"\n')
    done = reload(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "http.max-payload: 16MiB -> 1KiB",
        "opened figg=tcp:0:interface=127.0.0.1",
        "journal.durability needs a restart",
    ]
    assert (post(port, 2_000), post(port, 1_000)) == (413, 200)
    opened = server.port("figg")
    fyrehose("publish", "--to", f"127.0.0.1:{opened}", "--stream", "s", "by figg")
    file.write_text(http + "[option.http]\nmax-payload = 0\n")
    broken = reload(tmp_path)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr.endswith("line 3, in [option.http]: max-payload must be from 1 to 16MiB, not 0\n")
    assert post(port, 2_000) == 413
    file.write_text(http)
    assert reload(tmp_path).stdout.splitlines() == [
        "closed figg=tcp:0:interface=127.0.0.1",
        "http.max-payload: 1KiB -> 16MiB",
    ]
    until(lambda: refuses(opened), "the listener is still open")
    assert post(port, 2_000) == 200
    assert server.stop() == 0
