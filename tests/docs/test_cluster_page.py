"""The page about clusters agrees with the code: its options are complete, and its commands work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from fyrehose.replication.jetstream import JetStreamLog
from fyrehose.replication.settings import ReplicationSettings
from fyrehose.server.config import read_file
from fyrehose.testing.cluster import Cluster
from fyrehose.testing.nats import program

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_every_option_of_replication_is_in_the_table() -> None:
    options = {field.name.replace("_", "-") for field in attrs.fields(ReplicationSettings)}
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) == options


def test_the_configuration_of_the_example_is_valid() -> None:
    settings = read_file(ROOT / "deploy" / "cluster" / "fyrehose.toml").replication
    assert settings is not None
    assert len(settings.servers) == settings.members == settings.replicas == 3


def test_the_name_of_the_stream_is_right() -> None:
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
    file = tmp_path / "passwords"
    made = "\n".join(lines).replace("/etc/nats/passwords", str(file))
    subprocess.run(["bash", "-euc", made], check=True)
    assert file.stat().st_mode & 0o777 == 0o600
    variables = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert len(set(variables.values())) == len(variables) == 8
    command = [executable, "-t", "-c", str(folder / "nats.conf")]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert ended.returncode == 0, ended.stderr


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
    said = []
    with Cluster(tmp_path / "build" / "cluster") as cluster:
        subprocess.run(
            [str(script), "cluster", "leader", "--wait", "120s", "--config", "build/cluster/a/fyrehose.toml"],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=150,
        )
        for command in commands:
            # On a busy machine the new leader's listener may need another moment: curl then says nothing.
            ended = subprocess.run(
                [shutil.which("bash") or "bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
            said.append(ended.stdout)
        assert (
            sum(server.process is not None and server.process.poll() is None for server in cluster.servers.values())
            == 2
        )
    assert said[0].count("follower") == 2
    assert '"first": 1' in said[1]
    assert '"first": 2' in said[3]
    assert re.findall(r'"seq": (\d).*"payload": "(\w+) the kill"', said[4]) == [("1", "before"), ("2", "after")]
