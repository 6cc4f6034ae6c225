"""Follow docs/cluster.md with deploy/cluster on three machines, which are network namespaces, to its last command.

Commands of the page are read from it and run as they are, but for the directories in which a machine has its files, and
for `systemctl`, in whose place this test starts, stops and reloads processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.nats_servers import program
from tests.live.conftest import with_nats
from tests.live.networks import Network
from tests.live.test_cluster import AGAIN

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "cluster"
PAGE = (ROOT / "docs" / "cluster.md").read_text()
BIN = Path(sys.executable).parent
PATIENCE = 90.0
POLICY = '[[allow]]\nnetwork = ["10.0.0.0/24", "127.0.0.0/8"]\npublish = "*"\nsubscribe = "*"\nadminister = "*"\n'
CONFIG = "--config /etc/fyrehose/fyrehose.toml"

pytestmark = with_nats(900)


def from_the_page(begin: str) -> str:
    """Return the only command of the page that begins with *begin*."""
    (found,) = re.findall(rf"^    ({re.escape(begin)}.*)$", PAGE, re.MULTILINE)
    return str(found)


@attrs.define(eq=False)
class Machine:
    """A machine with a NATS server, a Fyrehose server, and a process that serves its journal.

    :ivar number: the last part of its address, 10.0.0.NUMBER
    :ivar name: the name of its Fyrehose server
    :ivar disk: the directory in place of its root directory
    """

    number: int
    name: str
    network: Network
    disk: Path
    running: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict, init=False)

    def here(self, text: str) -> str:
        """Return *text* with the directories and the address of this machine."""
        text = text.replace("listen 10.0.0.1:", f"listen 10.0.0.{self.number}:")
        return re.sub(r"(?<![\w.])/(etc|var/lib)/", rf"{self.disk}/\1/", text)

    def run(self, command: str, answer: str = "", status: int | None = 0) -> str:
        """Run *command* in a shell of this machine, again if it says so; return all that it prints.

        :param status: the expected exit status; None: any
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = subprocess.run(
                [*self.network.inside, "bash", "-uc", self.here(command)],
                input=answer,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
                env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
            )
            if status in (None, ended.returncode):
                return ended.stdout
            failed = f"{command}: {ended.returncode}, {ended.stdout}"
            assert time.monotonic() < deadline, failed
            assert any(each in ended.stdout for each in AGAIN), failed

    def start(self, what: str, command: str) -> None:
        words = [*self.network.inside, "bash", "-uc", f"exec {self.here(command)}"]
        with (self.disk / what).open("ab") as log:
            path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
            self.running[what] = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "PATH": path})

    def start_nats(self) -> None:
        self.start("nats", f"{program()} -c /etc/nats/nats.conf")

    def start_fyrehose(self) -> None:
        self.start("fyrehose", f"fyrehose serve {CONFIG} --data-dir /var/lib/fyrehose")

    def serve_journal(self) -> None:
        self.start("serve", from_the_page("fyrehose journal serve"))

    def stop(self, what: str, how: signal.Signals = signal.SIGTERM) -> int:
        process = self.running.pop(what)
        process.send_signal(how)
        return process.wait(PATIENCE)

    def set_up(self, secrets: Path) -> None:
        """Write the files of a machine as deploy/cluster has them, with the passwords in the directory *secrets*."""
        for folder in ("etc/nats", "etc/fyrehose", "var/lib/nats", "var/lib/fyrehose"):
            (self.disk / folder).mkdir(parents=True, exist_ok=True)
        nats, fyrehose = self.disk / "etc/nats", self.disk / "etc/fyrehose"
        for file in ("passwords.conf", "routes.conf"):
            shutil.copy(secrets / file, nats)
        shutil.copy(DEPLOY / "nats-users.conf", nats)
        conf = (DEPLOY / "nats.conf").read_text().replace("server_name: n1", f"server_name: n{self.number}")
        (nats / "nats.conf").write_text(self.here(conf.replace("10.0.0.1:", f"10.0.0.{self.number}:")))
        (fyrehose / "policy.toml").write_text(POLICY)
        (fyrehose / "token").write_text("a-token-of-at-least-sixteen-characters\n")
        (fyrehose / "token").chmod(0o600)
        toml = (DEPLOY / "fyrehose.toml").read_text()
        servers, own = re.findall("servers = .*", toml)[0], f"10.0.0.{self.number}"
        toml = toml.replace("10.0.0.1", own).replace(servers.replace("10.0.0.1", own), servers)
        toml = toml.replace('name = "a"', f'name = "{self.name}"').replace('user = "a"', f'user = "{self.name}"')
        (fyrehose / "fyrehose.toml").write_text(self.here(toml.replace('"200GiB"', '"1GiB"\nmin-free = "16MiB"')))
        self.take_password()

    def take_password(self) -> None:
        """Write the password of this machine's user of NATS where its server reads it."""
        passwords = (self.disk / "etc/nats/passwords.conf").read_text()
        (own,) = re.findall(rf'^PASSWORD_{self.name.upper()}: "(.*)"$', passwords, re.MULTILINE)
        (self.disk / "etc/fyrehose/nats-password").write_text(f"{own}\n")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    """Return three machines that are set up as the page says, and run; their start takes 13 s of processor time."""
    root = tmp_path_factory.mktemp("machines")
    switch = Network.make()
    networks = [Network.make(switch) for _ in range(3)]
    switch.run("ip", "link", "add", "br0", "type", "bridge")
    switch.run("ip", "link", "set", "br0", "up")
    for number, network in enumerate(networks, 1):
        pid = str(network.process.pid)
        switch.run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", pid)
        switch.run("ip", "link", "set", f"v{number}", "master", "br0", "up")
        network.run("ip", "address", "add", f"10.0.0.{number}/24", "dev", "eth0")
        network.run("ip", "link", "set", "eth0", "up")
    made = "\n".join(re.findall(r"^#   (.*)$", (DEPLOY / "nats-users.conf").read_text(), re.MULTILINE))
    subprocess.run(["bash", "-euc", made.replace("/etc/nats", str(root))], check=True)
    found = [
        Machine(number, name, network, root / f"machine-{number}")
        for number, name, network in zip((1, 2, 3), "abc", networks, strict=True)
    ]
    for machine in found:
        machine.set_up(root)
        machine.start_nats()
    for machine in found:
        machine.start_fyrehose()
        machine.serve_journal()
    yield found
    for machine in found:
        for what in list(machine.running):
            machine.stop(what, signal.SIGKILL)
    for network in (*networks, switch):
        network.end()


def status(machine: Machine) -> tuple[int, dict[str, Any]]:
    said = machine.run(f"fyrehose cluster status {CONFIG} --format json 2>/dev/null; echo $?", status=None)
    shown, _, code = said.strip().rpartition("\n")
    return int(code), json.loads(shown or "{}")


def wait_until(machine: Machine, wanted: Callable[[int, dict[str, Any]], bool]) -> None:
    """Wait until status and output of `fyrehose cluster status` on *machine* are as *wanted*."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(*(found := status(machine))):
        logs = {file.name: file.read_text()[-1500:] for file in (machine.disk / "fyrehose", machine.disk / "nats")}
        assert time.monotonic() < deadline, (found, logs)
        time.sleep(0.5)


def whole(*names: str) -> Callable[[int, dict[str, Any]], bool]:
    """Return a condition: these servers, and no others, are there, and lack nothing."""

    def holds(code: int, said: dict[str, Any]) -> bool:
        seen = [
            each
            for server in said.get("servers", ())
            for each in server.get("servers", ())
            if server["state"] == "leader"
        ]
        return code == 0 and {each["name"]: each["behind"] for each in seen} == dict.fromkeys(names, 0)

    return holds


def read(machine: Machine) -> list[str]:
    """Return the payloads of the stream `news` on *machine*."""
    said = machine.run(f"curl -s 'http://10.0.0.{machine.number}:8117/streams/news?from=1&limit=100'")
    return [json.loads(line)["payload"] for line in said.splitlines()]


def test_commands_of_the_page_do_what_it_says(machines: list[Machine]) -> None:
    first, second, third = machines
    publish = f"{from_the_page('fyrehose publish --to')} --timeout 60s"
    wait_until(first, whole("a", "b", "c"))
    first.run(publish)
    assert "b leads" in first.run(f"fyrehose cluster handover b {CONFIG}")
    second.run(f"fyrehose cluster maintenance b {CONFIG}")
    assert second.run(f"fyrehose cluster leader --name {CONFIG}") != "b\n"
    second.run(f"fyrehose cluster maintenance b --end {CONFIG}")
    assert "c" in first.run(f"fyrehose cluster members {CONFIG}")

    first.run(f"fyrehose cluster remove c {CONFIG}")
    assert third.running["fyrehose"].wait(PATIENCE) == 2
    first.run(publish)
    third.run(f"fyrehose cluster add {CONFIG}")
    third.start_fyrehose()
    wait_until(first, whole("a", "b", "c"))

    third.stop("fyrehose")
    third.stop("serve")
    shutil.rmtree(third.disk / "var/lib/fyrehose")
    restore = from_the_page("fyrehose journal restore --exact").replace(
        " http", " --token-file /etc/fyrehose/token http"
    )
    third.run(restore)
    third.start_fyrehose()
    third.serve_journal()
    first.run(publish)
    wait_until(first, whole("a", "b", "c"))

    for machine in machines:  # the shared log is lost
        machine.stop("fyrehose")
        machine.stop("nats", signal.SIGKILL)
        shutil.rmtree(machine.disk / "var/lib/nats")
    for machine in machines:
        machine.start_nats()
    reseed = from_the_page("fyrehose cluster reseed")
    assert "the shared log begins" in first.run(reseed, "y\n")
    for machine in machines:
        machine.start_fyrehose()
    first.run(f"fyrehose cluster leader {CONFIG}")
    first.run(publish)
    wait_until(first, whole("a", "b", "c"))
    assert [read(machine) for machine in machines] == [["somebody leads"] * 4] * 3


def test_machine_is_replaced_as_the_page_says(machines: list[Machine]) -> None:
    """This test is the last one that uses the machines: the third one has another name at its end."""
    first, second, third = machines
    publish = f"{from_the_page('fyrehose publish --to')} --timeout 60s"
    wait_until(first, whole("a", "b", "c"))
    first.run(publish)
    before = read(first)

    for what in list(third.running):
        third.stop(what, signal.SIGKILL)
    shutil.rmtree(third.disk)
    wait_until(first, lambda code, _: code == 8)
    first.run(publish)

    for machine in (first, second):
        machine.run(from_the_page("sed -i -E 's/user: c"))
        machine.run(from_the_page("sed -i 's/^PASSWORD_C"))
        assert "systemctl reload nats" in PAGE
        machine.running["nats"].send_signal(signal.SIGHUP)
    third.name = "d"
    third.disk.mkdir()
    third.set_up(first.disk / "etc/nats")
    shutil.copy(first.disk / "etc/nats/nats-users.conf", third.disk / "etc/nats")
    third.start_nats()
    third.serve_journal()
    wait_until(first, lambda code, _: code == 0)
    said = third.run(from_the_page("fyrehose cluster replace"))
    assert {*re.findall(r"\b[a-d]\b", said)} == {"a", "b", "d"}
    third.start_fyrehose()
    wait_until(first, whole("a", "b", "d"))
    assert read(third) == [*before, "somebody leads"]
    log = (third.disk / "fyrehose").read_text()
    assert "the journal is filled up to position" in log, "the test above has begun the shared log behind all records"

    second.stop("nats", signal.SIGKILL)  # the shared log is on the new machine, too
    first.run(publish)
    third.stop("nats", signal.SIGKILL)
    wait_until(first, lambda code, _: code == 1)
    assert "2 of 3 NATS servers are lost" in first.run(f"fyrehose cluster status {CONFIG}", status=None)
    third.start_nats()
    second.start_nats()
    wait_until(first, whole("a", "b", "d"))


def test_every_command_of_the_page_is_followed_by_a_test() -> None:
    """Other commands of the page are run by tests/docs/test_cluster_page.py and test_several_clusters.py."""
    commands = re.findall(r"`(fyrehose cluster \w+)|^    (?:\$ )?(fyrehose \w+ \w+)", PAGE, re.MULTILINE)
    tests = Path(__file__).read_text() + "fyrehose cluster status"
    missing = {named or shown for named, shown in commands if (named or shown) not in tests}
    assert missing <= {"fyrehose journal follow", "fyrehose journal promote"}, missing
