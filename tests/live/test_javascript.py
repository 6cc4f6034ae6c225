"""The client in JavaScript against a real server: in Node, and in Chromium from a page of another site."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
PATIENCE = 60.0

IN_A_PAGE = """
const done = arguments[1];
(async () => {
  const { Fyrehose } = await import("/fyrehose.js");
  const server = new Fyrehose(arguments[0]), seen = [];
  await server.publish("page", "one");
  await server.publishMany("page", ["two", "three"]);
  for await (const record of server.follow("page", { from: 1 })) if (seen.push(record.payload) === 3) break;
  const reader = server.subscription("reader", "page"), records = await reader.read();
  const shown = await reader.acknowledge(records.at(-1).seq);
  return [seen, shown.position, (await server.streams("pa*")).map((each) => each.name)];
})().then(done, (error) => done(String(error)));
"""


def program(name: str) -> str:
    """Return the path of a program, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"a program of others is not installed: {name}")
    return found


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """Serve the module, and return its origin."""
    handler = functools.partial(Quiet, directory=str(CLIENT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_function_works_in_node(start: Any) -> None:
    server = start("--listen", "http=tcp:0:interface=127.0.0.1")
    environment = {**os.environ, "FYREHOSE_URL": f"http://127.0.0.1:{server.port('http')}"}
    words = [program("node"), "--test", "--test-reporter=tap", "test.mjs"]
    ran = subprocess.run(words, cwd=CLIENT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "# fail 0" in ran.stdout
    assert server.stop() == 0


@pytest.mark.slow
def test_a_page_of_another_site_uses_it(start: Any, browser: Any, site: str) -> None:
    server = start("--listen", "http=tcp:0:interface=127.0.0.1", "--option", f"http.origins={site}")
    browser.get(f"{site}/README.md")
    browser.set_script_timeout(PATIENCE)
    found = browser.execute_async_script(IN_A_PAGE, f"http://127.0.0.1:{server.port('http')}")
    assert found == [["one", "two", "three"], 3, ["page"]]
    browser.get("about:blank")


def test_npm_packs_the_module_its_types_and_the_readme(tmp_path: Path) -> None:
    words = [
        program("npm"),
        "pack",
        "--offline",
        "--pack-destination",
        str(tmp_path),
        "--cache",
        str(tmp_path / "cache"),
    ]
    ran = subprocess.run(words, cwd=CLIENT, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    (packed,) = tmp_path.glob("*.tgz")
    listed = subprocess.run(["tar", "tzf", str(packed)], capture_output=True, text=True, check=True).stdout.splitlines()
    names = ["README.md", "fyrehose.d.ts", "fyrehose.js", "package.json"]
    assert sorted(listed) == [f"package/{name}" for name in names]
