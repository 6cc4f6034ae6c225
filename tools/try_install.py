"""Use an installed Fyrehose as a person would; ``dist.py`` runs this with the Python of a new environment.

    python tools/try_install.py native|pure-Python

It needs nothing but the standard library and what was installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

SCRIPTS = Path(sysconfig.get_path("scripts"))
#: How long anything may take on a busy machine, in seconds.
PATIENCE = 120.0
PROTOCOLS = ("figg", "relink", "lumberjack", "http", "admin", "eventbus", "backbone")


def run(name: str, *words: str, status: int = 0) -> str:
    """Run an installed command; return everything that it writes."""
    command = [str(SCRIPTS / name), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
    said = done.stdout.decode(errors="replace")  # Records of the event bus are not text.
    assert done.returncode == status, f"{command} ended with {done.returncode}: {said}"
    return said


class Server:
    """``fyrehose serve`` with every protocol on a free port, and the journal in ./data."""

    def __init__(self) -> None:
        self.log = Path("log")
        self.log.write_bytes(b"")
        command = [str(SCRIPTS / "fyrehose"), "serve", "--config", "fyrehose.toml"]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.wait_for("serving\n")

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while words not in self.log.read_text():
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {words!r} in {self.log.read_text()}"
            time.sleep(0.05)

    def at(self, name: str) -> str:
        """Return the address of a listener."""
        (port,) = re.findall(rf"\b{name} \(\S+\) listens on 127.0.0.1:(\d+)\n", self.log.read_text())
        return f"127.0.0.1:{port}"

    def get(self, name: str, path: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a GET."""
        try:
            with urllib.request.urlopen(f"http://{self.at(name)}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def check_commands(kernels: str) -> str:
    """Check what needs no server; return the version."""
    code = "import fyrehose, fyrehose.kernels as k; print(fyrehose.__file__, k.NATIVE); from fyrehose import Fyrehose"
    file, native = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert Path(file).is_relative_to(sysconfig.get_path("platlib")), f"imported {file}, which is not what was installed"
    assert (native == "True") == (kernels == "native"), f"native kernels: {native}, expected {kernels}"
    version = run("fyrehose", "--version").split()[1]
    assert "fyrehose" in run("twistd", "--help"), "twistd does not find the plugin"
    listed = run("fyrehose", "protocols")
    assert all(name in listed for name in PROTOCOLS)
    assert "fyrehose-spark needs pyspark: pip install 'fyrehose[spark]'" in listed
    missing = run("fyrehose-spark", "table", "--journal", "data", status=2)
    assert missing.count("\n") == 1, f"not one line: {missing}"
    assert "pip install 'fyrehose[spark]'" in missing
    return version


def publish(server: Server) -> None:
    """Publish with every protocol, and read it back with two."""
    for name in ("figg", "relink", "lumberjack", "eventbus", "backbone"):
        stream = {"figg": ["--stream", "s"], "relink": ["--stream", "s"], "eventbus": ["--stream", "/a/"]}.get(name, [])
        run("fyrehose", "publish", "--protocol", name, "--to", server.at(name), *stream, f"by {name}")
    url = f"http://{server.at('http')}/streams/s"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"by http"), timeout=PATIENCE) as answer:
        assert json.load(answer) == {"stream": "s", "count": 1, "first": 3, "last": 3}
    for name in ("lumberjack", "eventbus", "backbone"):
        said = run(
            "fyrehose", "tail", "--from", server.at("figg"), "--stream", name, "--since", "start", "--count", "1"
        )
        assert f"by {name}" in said


def check_kept(server: Server) -> None:
    """Check that everything that was acknowledged is there."""
    said = run("fyrehose", "tail", "--from", server.at("figg"), "--stream", "s", "--since", "start", "--count", "3")
    assert said.splitlines() == ["by figg", "by relink", "by http"]
    status, body = server.get("http", "/streams/s")
    assert (status, body.count(b"\n")) == (200, 3)
    assert server.get("admin", "/ready")[0] == 200
    assert b"<html" in server.get("admin", "/")[1]


def main() -> None:
    kernels = sys.argv[1]
    version = check_commands(kernels)
    listen = "".join(
        f'{name} = "{"udp" if name == "backbone" else "tcp"}:0:interface=127.0.0.1"\n' for name in PROTOCOLS
    )
    Path("fyrehose.toml").write_text(f'data-dir = "data"\n[listen]\n{listen}')
    server = Server()
    publish(server)
    check_kept(server)
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    server = Server()
    assert f"fyrehose {version}, {kernels} kernels" in server.log.read_text()
    assert "not closed in order" in server.log.read_text()
    check_kept(server)
    assert server.end(signal.SIGTERM) == 0, server.log.read_text()
    assert run("fyrehose", "journal", "verify", "data").startswith("OK")
    print(f"fyrehose {version} works, with {kernels} kernels")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
