"""Check the page about clusters against the code: its options are complete, and its commands work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from benchmarks.local_cluster import Cluster
from benchmarks.nats_servers import program
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.jetstream import JetStreamLog
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.server.config import read_file
from fyrehose.testing.ports import free_ports
from tests.doubles.patience import patiently

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "cluster"
PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_every_option_of_replication_is_in_the_table() -> None:
    options = {field.name.replace("_", "-") for field in attrs.fields(ReplicationSettings)}
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) == options


def test_the_configuration_of_the_example_is_valid() -> None:
    settings = read_file(ROOT / "deploy" / "cluster" / "fyrehose.toml").replication
    assert settings is not None
    assert len(settings.servers) == settings.members == settings.replicas == 3


def test_the_name_of_the_shared_log_on_the_page_is_right() -> None:
    name = ReplicationSettings().cluster
    assert f"`{JetStreamLog(None, (), name).stream[: -len(name)]}` and the cluster's name" in PAGE


def test_the_configuration_of_nats_syncs_every_message() -> None:
    assert "sync_interval: always" in (ROOT / "deploy" / "cluster" / "nats.conf").read_text()


@pytest.mark.live
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_the_configuration_of_nats_is_valid_with_passwords_made_as_it_says(tmp_path: Path) -> None:
    executable = program()
    assert executable is not None
    folder = ROOT / "deploy" / "cluster"
    lines = re.findall(r"^#   (.*)$", (folder / "nats-users.conf").read_text(), re.MULTILINE)
    for each in ("nats.conf", "nats-users.conf"):
        shutil.copy(folder / each, tmp_path)
    made = "\n".join(lines).replace("/etc/nats", str(tmp_path))
    subprocess.run(["bash", "-euc", made], check=True)
    files = [tmp_path / "passwords.conf", tmp_path / "routes.conf"]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o640, 0o640]
    variables = dict(line.split(": ", 1) for file in files for line in file.read_text().splitlines())
    assert len(set(variables.values())) == len(variables) == 8
    command = [executable, "-t", "-c", str(tmp_path / "nats.conf")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def with_tls(text: str) -> str:
    """Return a configuration of deploy/cluster with its TLS lines, which begin with "#"; comments begin with "# "."""
    return re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)


@pytest.fixture
def nats_with_tls(tmp_path: Path) -> Iterator[str]:
    """Start three NATS servers with deploy/cluster/nats.conf and TLS; return the address of one."""
    executable = program()
    assert executable is not None
    (made,) = re.findall(r"^    (openssl req -x509.*?\n    done)$", PAGE, re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-euc", made.replace("10.0.0.", "127.0.0.")], check=True, cwd=tmp_path, capture_output=True)
    client, route = (str(port) for port in free_ports(2))
    passwords = "".join(f'PASSWORD_{name}: "x{name}"\n' for name in ("A", "B", "C", "STATUS"))
    routes = 'PASSWORD_ROUTE: "xROUTE"\n'
    routes += "".join(f'ROUTE_{i}: "nats://route:xROUTE@127.0.0.{i}:{route}"\n' for i in (1, 2, 3))
    processes = []
    for i in (1, 2, 3):
        folder = tmp_path / f"n{i}"
        folder.mkdir()
        shutil.copy(DEPLOY / "nats-users.conf", folder)
        (folder / "passwords.conf").write_text(passwords)
        (folder / "routes.conf").write_text(routes)
        text = with_tls((DEPLOY / "nats.conf").read_text()).replace("n1", f"n{i}").replace("10.0.0.1", f"127.0.0.{i}")
        text = text.replace("4222", client).replace("6222", route).replace("/var/lib/nats", str(folder / "store"))
        for name, file in (("cert", f"cert-{i}.pem"), ("key", f"key-{i}.pem"), ("ca", "ca.pem")):
            text = text.replace(f"/run/credentials/nats.service/{name}", str(tmp_path / file))
        (folder / "nats.conf").write_text(text)
        with (folder / "log").open("wb") as log:
            command = [executable, "-c", str(folder / "nats.conf")]
            processes.append(subprocess.Popen(command, stderr=log))
    yield f"127.0.0.1:{client}"
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_the_shared_log_is_used_with_tls_and_certificates_made_as_the_page_says(
    nats_with_tls: str, tmp_path: Path
) -> Any:
    example = read_file(DEPLOY / "fyrehose.toml").replication
    assert example is not None
    assert "\ntls-authorities = " in with_tls((DEPLOY / "fyrehose.toml").read_text())
    (tmp_path / "password").write_text("xA\n")
    settings = attrs.evolve(example, password_file=str(tmp_path / "password"), tls_authorities=str(tmp_path / "ca.pem"))

    async def used() -> None:
        log = JetStreamLog(reactor, [f"nats://{nats_with_tls}"], "fyrehose", options=settings.connect_options())
        try:
            await patiently(log.open, lambda message: None)
            takeover = LogEntry(EntryKind.TAKEOVER, 1, EntryWriter("a", 1), 0)
            assert await patiently(log.append, takeover, 0) == 1
            extent = await patiently(log.extent)
            assert [node.name for node in extent.nodes] == ["n1", "n2", "n3"]
        finally:
            await log.close()

    return Deferred.fromCoroutine(used())


def test_the_page_lists_the_subjects_that_users_may_use() -> None:
    users = (ROOT / "deploy" / "cluster" / "nats-users.conf").read_text()
    allowed = {name for name in re.findall(r'"([^" ]+)"', users) if name.startswith(("fyrehose.", "$JS."))}
    listed = {name.replace("NAME", "fyrehose") for name in re.findall(r"^\| `([^` ]+\.\S+)` \|", PAGE, re.MULTILINE)}
    assert {re.sub(r"(inbox|here)\.\w+", r"\1.SERVER", name) for name in allowed} == listed


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_five_commands_publish_kill_the_leader_and_read(tmp_path: Path) -> None:
    commands = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 5
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "fyrehose"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from fyrehose.cli import main; main()" "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    wanted = ("follower.*follower", '"first": 1', "", '"first": 2', "before the kill.*after the kill")
    said = []
    with Cluster(tmp_path / "build" / "cluster") as cluster:
        subprocess.run(
            [str(script), "cluster", "leader", "--wait", "120s", "--config", "build/cluster/a/fyrehose.toml"],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=150,
        )
        for command, pattern in zip(commands, wanted, strict=True):
            deadline = time.monotonic() + 120
            while True:
                ended = subprocess.run(
                    [shutil.which("bash") or "bash", "-c", command],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                if ended.returncode == 0 and re.search(pattern, ended.stdout, re.DOTALL):
                    break
                # On a busy machine a follower may be silent for a moment, and the listener of the new leader may open a
                # little later, so that curl prints nothing.
                assert time.monotonic() < deadline, f"{command}: {ended.stdout}{ended.stderr}"
            said.append(ended.stdout)
        assert (
            sum(server.process is not None and server.process.poll() is None for server in cluster.servers.values())
            == 2
        )
    assert said[0].count("follower") == 2
    assert re.findall(r'"seq": (\d).*"payload": "(\w+) the kill"', said[4]) == [("1", "before"), ("2", "after")]
