"""Test the client in JavaScript against a real server: in Node, and in Chromium from a page of another site."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from fyrehose.testing.ports import free_ports
from tests.live.conftest import program, ran
from tests.live.npm import install

pytestmark = pytest.mark.live

SITE = CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
PATIENCE = 100.0

#: A program that prints the methods of each class that a module exports, and the names of its functions.
EXPORTS = """
const found = {};
for (const [name, value] of Object.entries(await import(process.argv[1]))) {
  found[name] = [];
  for (let at = value.prototype; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
    found[name].push(...Object.getOwnPropertyNames(at));
  }
}
console.log(JSON.stringify(found));
"""


def node(*words: str | Path, **environment: str) -> str:
    """Run Node; return its output."""
    command = [program("node"), *map(str, words)]
    return ran(*command, cwd=CLIENT, env={**os.environ, **environment}).stdout


def uncalled(module: str, coverage: Path) -> set[str]:
    """Return the names of the functions and methods of *module* that no process has called."""
    called: dict[str, bool] = {}
    for path in coverage.glob("*.json"):
        for script in json.loads(path.read_text())["result"]:
            if script["url"].endswith(f"/javascript/{module}"):
                for each in script["functions"]:
                    name = each["functionName"]
                    called[name] = called.get(name, False) or each["ranges"][0]["count"] > 0
    assert called, "the module was not loaded"
    return {name for name, yes in called.items() if name and not yes}


@pytest.mark.parametrize(
    ("tests", "modules"), [("http.mjs", ("fyrehose.js", "live.js")), ("relink.mjs", ("relink.js",))]
)
def test_every_function_works_in_node(tests: str, modules: tuple[str, ...], start: Any, tmp_path: Path) -> None:
    server = start("--listen", "http=tcp:0:interface=127.0.0.1", "--listen", "relink=tcp:0:interface=127.0.0.1")
    told = node(
        "--test",
        "--test-reporter=tap",
        f"tests/{tests}",
        FYREHOSE_URL=f"http://127.0.0.1:{server.port('http')}",
        FYREHOSE_RELINK=f"127.0.0.1:{server.port('relink')}",
        NODE_V8_COVERAGE=str(tmp_path / "coverage"),
    )
    assert "# fail 0" in told
    assert [uncalled(module, tmp_path / "coverage") for module in modules] == [set() for _ in modules]
    assert server.stop() == 0


@pytest.mark.slow
def test_every_function_works_in_a_page_of_another_site(start: Any, browser: Any, site: str) -> None:
    server = start("--listen", "http=tcp:0:interface=127.0.0.1", "--option", f"http.origins={site}")
    browser.get(f"{site}/tests/page.html?server=http://127.0.0.1:{server.port('http')}")
    result = WebDriverWait(browser, PATIENCE).until(lambda page: page.execute_script("return window.RESULT"))
    assert result["failed"] == []
    assert result["passed"] == CLIENT.joinpath("tests", "http.mjs").read_text().count('\ntest("')
    browser.get_log("browser")  # discard the refusals that the tests cause on purpose
    browser.get("about:blank")


@pytest.mark.parametrize("name", ["fyrehose", "relink"])
def test_types_declare_what_the_module_exports(name: str) -> None:
    exported = json.loads(node("--input-type=module", "--eval", EXPORTS, CLIENT / f"{name}.js"))
    types = CLIENT.joinpath(f"{name}.d.ts").read_text()
    classes = dict(re.findall(r"^export class (\w+)[^{\n]*\{(.*?)\}$", types, re.MULTILINE | re.DOTALL))
    functions = set(re.findall(r"^export function (\w+)", types, re.MULTILINE))
    assert {*classes, *functions} == set(exported)
    for each, body in classes.items():
        declared = set(re.findall(r"^  (\w+)\(", body, re.MULTILINE))
        assert declared <= set(exported[each]), each


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a copy of the client with the packages that package.json pins, or skip the test; npm fetches them."""
    copy = tmp_path / "client"
    shutil.copytree(CLIENT, copy, ignore=shutil.ignore_patterns("node_modules"))
    install(copy, tmp_path / "cache")
    return copy


#: Follow a stream with npm's eventsource, and print the numbers until the one that is wanted has come.
FOLLOWER = """
import { EventSource } from "eventsource";
const [url, wanted] = process.argv.slice(2), seen = [];
const source = new EventSource(url);
source.onmessage = (event) => {
  if (seen.push(JSON.parse(event.data).seq) === 1) console.error("first");
  if (seen.at(-1) === Number(wanted)) {
    console.log(JSON.stringify(seen));
    process.exit();
  }
};
"""


@pytest.mark.slow
def test_eventsource_of_npm_misses_nothing_while_the_server_is_killed(start: Any, installed: Path) -> None:
    (port,) = free_ports(1)
    url, listen = f"http://127.0.0.1:{port}/streams/s", ("--listen", f"http=tcp:{port}:interface=127.0.0.1")
    server = start(*listen)

    def publish(count: int) -> None:
        for _ in range(count):
            with urlopen(url, b"x", timeout=PATIENCE) as answer:
                assert answer.status == 200

    publish(1)
    (installed / "follower.mjs").write_text(FOLLOWER)
    words = [program("node"), "follower.mjs", f"{url}/live?from=1", "9"]
    with subprocess.Popen(words, cwd=installed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stderr is not None
        assert follower.stderr.readline() == "first\n"
        for _ in range(2):
            publish(2)
            server.process.kill()
            server.process.wait()
            server = start(*listen)
            publish(2)
        out, _ = follower.communicate(timeout=PATIENCE)
    assert json.loads(out) == list(range(1, 10))


def test_programs_in_typescript_compile(installed: Path) -> None:
    """The versions of the compiler are pinned in package.json."""
    # The compiler takes most of the time, so it runs once on a program in which only one line must not compile.
    with (installed / "tests" / "types.ts").open("a") as program:
        program.write("export const wrong = (server: Fyrehose) => server.publishNothing();\n")
    compiled = npm(installed, "run", "types")
    (error,) = re.findall(r"^.*error TS.*$", compiled.stdout, re.MULTILINE)
    assert error.startswith("tests/types.ts("), compiled.stdout
    assert "Property 'publishNothing' does not exist on type 'Fyrehose'" in error


def npm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(program("npm"), *words, cwd=folder, status=None)


def test_npm_packs_the_modules_their_types_and_the_readme(tmp_path: Path) -> None:
    packing = npm(CLIENT, "pack", "--offline", "--pack-destination", str(tmp_path), "--cache", str(tmp_path / "cache"))
    assert packing.returncode == 0, packing.stderr
    (packed,) = tmp_path.glob("*.tgz")
    listed = ran("tar", "tzf", packed).stdout.splitlines()
    names = ["README.md", "fyrehose.d.ts", "fyrehose.js", "live.js", "package.json", "relink.d.ts", "relink.js"]
    assert sorted(listed) == [f"package/{name}" for name in names]
