"""Test syslog with rsyslog, syslog-ng and logger against a server in a process of its own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_port
from tests.live.conftest import FYREHOSE, PATIENCE, program, stored, until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPE = Path(__file__).parents[2] / "deploy" / "recipes" / "rsyslog" / "fyrehose.conf"
TCP, UDP = ("--listen", "syslog=tcp:0:interface=127.0.0.1"), ("--listen", "syslog=udp:0:interface=127.0.0.1")
#: How rsyslog sends to a server, by the name of the way.
WAYS = {
    "udp": 'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="udp")',
    "lines": 'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp")',
    "counted": 'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" TCP_Framing="octet-counted")',
    "tls": (
        'global(DefaultNetstreamDriverCAFile="{authority}")\n'
        'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" TCP_Framing="octet-counted"'
        ' StreamDriver="ossl" StreamDriverMode="1" StreamDriverAuthMode="x509/name"'
        ' StreamDriverPermittedPeers="logs.example.com")'
    ),
}


def texts(directory: Path) -> list[str]:
    """Return the messages of a stream, each without the part before its text."""
    return [record["payload"].rpartition("app: ")[2] for record in stored(directory / "data", "syslog")]


@pytest.fixture
def rsyslog(run: Any, tmp_path: Path) -> Callable[[str, int], None]:
    """Return a function that starts rsyslog with an action, and lets it send a number of lines of a file."""

    def starter(action: str, lines: int) -> None:
        file = tmp_path / "in.log"
        file.write_text("".join(f"line {number}\n" for number in range(1, lines + 1)))
        tmp_path.joinpath("rsyslog.conf").write_text(
            f'global(workDirectory="{tmp_path}")\nmodule(load="imfile")\n'
            f'input(type="imfile" file="{file}" tag="app:")\n{action}\n'
        )
        run(program("rsyslogd"), "-n", "-f", tmp_path / "rsyslog.conf", "-i", tmp_path / "rsyslog.pid")

    return starter


@pytest.mark.parametrize("way", WAYS)
def test_messages_of_rsyslog_arrive_whole_and_in_order(way: str, start: Any, rsyslog: Any, tmp_path: Path) -> None:
    options = ["--option", "syslog.format=json", "--option", "syslog.routes=logs.{app-name}"]
    if way == "tls":
        own = Authority(tmp_path).issue("logs.example.com")
        options += ["--option", f"syslog.tls-certificate={own.certificate}", "--option", f"syslog.tls-key={own.key}"]
    server = start("--data-dir", "data", *(UDP if way == "udp" else TCP), *options)
    authority = tmp_path / "authority.pem"
    rsyslog(WAYS[way].format(port=server.port("syslog"), authority=authority), 100)
    until(lambda: len(stored(tmp_path / "data", "logs.app")) >= 100, "messages are missing")
    assert server.stop() == 0
    found = [json.loads(record["payload"]) for record in stored(tmp_path / "data", "logs.app")]
    assert [each["message"] for each in found] == [f"line {number}" for number in range(1, 101)]
    assert {(each["facility"], each["severity"], each["app-name"]) for each in found} == {("local0", "notice", "app")}


@pytest.mark.timeout(1200)
def test_five_commands_lead_from_rsyslog_to_sql(start: Any, rsyslog: Any, tmp_path: Path) -> None:
    """rsyslog is installed, and this test starts it in place of systemd."""
    section = RECIPES.read_text().partition("\n## rsyslog\n")[2]
    *_, query = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    port = free_port()
    start("--data-dir", "data", "--listen", f"syslog=tcp:{port}:interface=127.0.0.1")
    rsyslog(RECIPE.read_text().replace('"2514"', f'"{port}"'), 5)
    until(lambda: len(texts(tmp_path)) == 5, "rsyslog does not send")
    program, *words = shlex.split(query)
    said = subprocess.run(
        [Path(FYREHOSE).with_name(program), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    assert [line for number in range(1, 6) for line in said.stdout.splitlines() if f"app: line {number}" in line]


@pytest.mark.parametrize(
    ("words", "listen"),
    [
        (["-d"], UDP),
        (["-T"], TCP),
        (["-T", "--octet-count"], TCP),
        (["-T", "--rfc3164"], TCP),
        (["-d", "--rfc3164"], UDP),
    ],
    ids=" ".join,
)
def test_message_of_logger_is_stored(words: list[str], listen: tuple[str, ...], start: Any, tmp_path: Path) -> None:
    server = start("--data-dir", "data", *listen, "--option", "syslog.format=json")
    place = ("-n", "127.0.0.1", "-P", str(server.port("syslog")), "-t", "app", "-p", "mail.err")
    subprocess.run([program("logger"), *words, *place, "hello w\u00f6rld"], check=True, timeout=PATIENCE)
    until(lambda: stored(tmp_path / "data", "syslog"), "the message is missing")
    assert server.stop() == 0
    (record,) = stored(tmp_path / "data", "syslog")
    found = json.loads(record["payload"])
    expected = {"facility": "mail", "severity": "err", "app-name": "app", "message": "hello w\u00f6rld"}
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_messages_of_syslog_ng_are_stored(transport: str, start: Any, run: Any, tmp_path: Path) -> None:
    server = start("--data-dir", "data", *(UDP if transport == "udp" else TCP), "--option", "syslog.format=json")
    tmp_path.joinpath("in.log").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    tmp_path.joinpath("ng.conf").write_text(
        "@version: 3.38\noptions { stats-freq(0); };\n"
        f'source s {{ file("{tmp_path}/in.log" follow-freq(1) flags(no-parse) program-override("app")); }};\n'
        f'destination d {{ syslog("127.0.0.1" transport("{transport}") port({server.port("syslog")})); }};\n'
        "log { source(s); destination(d); };\n"
    )
    files = [f"--{name}={tmp_path / f'ng.{name}'}" for name in ("persist-file", "pidfile", "control")]
    run(program("syslog-ng"), "-F", "--no-caps", "-f", tmp_path / "ng.conf", *files)
    until(lambda: len(stored(tmp_path / "data", "syslog")) >= 100, "messages are missing")
    assert server.stop() == 0
    found = [json.loads(record["payload"]) for record in stored(tmp_path / "data", "syslog")]
    assert [each["message"].strip() for each in found] == [f"line {number}" for number in range(1, 101)]
    assert {each["app-name"] for each in found} == {"app"}
