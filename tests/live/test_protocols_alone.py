"""Test fyrehose-protocols, built and installed alone, and the example loops of docs/embedding.md."""

from __future__ import annotations

import re
import runpy
import socket
import subprocess
import sys
import venv
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_port
from tests.live.conftest import PATIENCE, ran

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
TRY = ROOT / "tools" / "try_protocols.py"
#: The packages in an environment of fyrehose-protocols: attrs, and trio with its requirements.
REQUIRED = ("attr", "attrs", "trio", "outcome", "sniffio", "sortedcontainers", "idna")
SECTION = ROOT.joinpath("docs", "embedding.md").read_text().partition("## The codecs alone")[2].partition("\n## ")[0]
ANSWER, *LOOPS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


def run(*words: str | Path) -> str:
    return ran(*words).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from its source tree, without a network; return its path."""
    folder = tmp_path_factory.mktemp("protocols")
    run(sys.executable, ROOT / "tools" / "protocols.py", folder / "source")
    words = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder / "built")
    run(sys.executable, "-m", "pip", *words, folder / "source")
    (built,) = folder.joinpath("built").iterdir()
    return built


def linked(environment: Path) -> None:
    """Link the requirements into an environment, so that the test needs no network."""
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in REQUIRED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        packages.joinpath(name).symlink_to(folder)
    (found,) = folder.parent.glob("attrs-*.dist-info")
    packages.joinpath(found.name).symlink_to(found)


@pytest.mark.slow
def test_the_codecs_work_in_an_environment_without_twisted(wheel: Path, tmp_path: Path) -> None:
    """The size excludes compiled modules of attrs, which belong to the environment of this test."""
    venv.create(tmp_path / "env", symlinks=True)
    linked(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert run(python, "-I", TRY, ROOT / "examples" / "codecs").startswith("fyrehose-protocols works: ")


def test_the_modules_of_the_protocols_package_import_only_attrs() -> None:
    sys.path.append(str(ROOT / "tools"))
    try:
        modules = runpy.run_path(str(ROOT / "tools" / "protocols.py"))["modules"]()
    finally:
        sys.path.remove(str(ROOT / "tools"))
    graph = runpy.run_path(str(ROOT / "tools" / "import_graph.py"))
    names = {name.partition(".")[0] for module in modules for name in graph["reached"](module)}
    # isal and backports.zstd are used if they are installed
    assert names - set(sys.stdlib_module_names) - {"fyrehose"} == {"attrs", "backports", "isal"}
    protocols = ("backbone", "eventbus", "figg", "lumberjack", "relink")
    assert {f"fyrehose.protocols.{name}.frames" for name in protocols} | {"fyrehose.records"} <= modules
    assert not [name for name in modules if name.startswith(("fyrehose.protocols.http", "fyrehose.kernels.native"))]


def test_the_protocols_package_has_the_requirements_of_the_server() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    required = ROOT.joinpath("protocols", "pyproject.toml").read_text()
    (attrs,) = re.findall(r"^attrs .*$", setup["options"]["install_requires"], re.MULTILINE)
    (isal,) = re.findall(r"^isal .*$", setup["options.extras_require"]["lumberjack"], re.MULTILINE)
    assert f'["{attrs}"]' in required
    assert f"['{isal}']" in required
    assert f'requires-python = "{setup["options"]["python_requires"]}"' in required


@pytest.mark.parametrize("number", range(3), ids=["sockets", "asyncio", "trio"])
def test_the_example_loops_of_the_page_acknowledge_a_window(number: int, tmp_path: Path) -> None:
    port = free_port()
    program = tmp_path / "program.py"
    program.write_text(f"{ANSWER}\n{LOOPS[number].replace('5044', str(port))}")
    window: Any = runpy.run_path(str(TRY))["WINDOW"]
    with subprocess.Popen([sys.executable, "-u", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            with connected(port, process) as peer:
                peer.sendall(window)
                assert peer.recv(6, socket.MSG_WAITALL) == bytes.fromhex("3241 00000002")
                peer.sendall(b"\xff")
                assert peer.recv(1) == b"", "the connection is open after a violation"
        finally:
            process.kill()
            printed, _ = process.communicate()
    assert printed == b'{"n":1}\n{"n":2}\n'


def connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    """Wait until *process* listens, and return a connection to it."""
    while process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), PATIENCE)
        except ConnectionRefusedError:
            continue
    raise AssertionError(process.communicate())
