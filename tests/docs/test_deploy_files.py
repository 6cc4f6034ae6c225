"""Check the files in deploy: units and Dockerfile name existing files and commands, and systemd accepts the units."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

from fyrehose.cli.journal.backup import backup
from fyrehose.cli.journal.commands import serve as journal_serve
from fyrehose.cli.journal.standby import follow as journal_follow
from fyrehose.cli.spark import archive, optimize
from fyrehose.errors import JournalCorrupt
from fyrehose.server.tap import DRAIN
from fyrehose.spark.stores import LakeStore

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def unit(name: str) -> ConfigParser:
    """Parse the unit *name* of deploy/systemd."""
    found = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(DEPLOY / "systemd" / name)
    return found


def test_the_unit_notifies_systemd_and_is_hardened() -> None:
    service = unit("fyrehose.service")["Service"]
    assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
    assert service["ExecStart"].split()[:2] == ["/opt/fyrehose/bin/fyrehose", "serve"]
    assert float(service["TimeoutStopSec"]) >= 3 * DRAIN, "the timeout is too short for draining and the last syncs"
    assert set(service["RestartPreventExitStatus"].split()) == {"1", "2", "3"}
    assert float(service["WatchdogSec"]) > 0
    assert {service[name] for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome")} == {"yes"}
    assert service["ProtectSystem"] == "strict"
    # The server raises its own limit of open files.
    assert "@resources" not in (DEPLOY / "systemd" / "fyrehose.service").read_text().partition("~@privileged")[2]


def test_the_socket_unit_names_the_endpoint_of_its_listener() -> None:
    socket = unit("fyrehose.socket")["Socket"]
    text = (DEPLOY / "systemd" / "fyrehose.socket").read_text()
    assert f"systemd:domain=INET:name={socket['FileDescriptorName']}" in text
    assert socket["ListenStream"].startswith("0.0.0.0:"), "the domain is INET"


def test_the_backup_unit_runs_a_valid_command_that_may_write_its_target() -> None:
    service = unit("fyrehose-backup.service")
    program, *words = service["Service"]["ExecStart"].split()
    assert (program, words[:2]) == ("/opt/fyrehose/bin/fyrehose", ["journal", "backup"])
    context = backup.make_context("backup", words[2:])
    server = unit("fyrehose.service")["Service"]
    assert context.params["source"] == f"/var/lib/{server['StateDirectory']}"
    written = Path(service["Service"]["ReadWritePaths"])
    assert written in context.params["target"].parents
    assert service["Unit"]["RequiresMountsFor"] == str(written)
    timer = unit("fyrehose-backup.timer")
    assert timer["Timer"]["OnCalendar"] == "hourly"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_units_of_a_standby_run_valid_commands_as_the_user_of_the_server() -> None:
    directory = f"/var/lib/{unit('fyrehose.service')['Service']['StateDirectory']}"
    follow, serve = (unit(f"fyrehose-{name}.service")["Service"] for name in ("follow", "journal-serve"))
    options = journal_follow.make_context("follow", follow["ExecStart"].split()[3:]).params
    served = journal_serve.make_context("serve", serve["ExecStart"].replace(directory, str(DEPLOY)).split()[3:]).params
    assert (str(options["directory"]), serve["ExecStart"].split()[3]) == (directory, directory)
    assert options["urls"] == (f"http://{served['place']}",)
    assert options["token_file"] == served["token_file"] == "${CREDENTIALS_DIRECTORY}/token"
    for found in (follow, serve):
        assert (found["DynamicUser"], found["User"]) == ("yes", "fyrehose")
        assert found["LoadCredential"] == "token:/etc/fyrehose/token"


def archive_options(command: list[str]) -> dict[str, Any]:
    """Parse a command that runs an archive as fyrehose-spark does; return its options."""
    program, *words = command
    assert (Path(program).name, words[0]) == ("fyrehose-spark", "archive")
    return archive.make_context("archive", words[1:]).params


def test_the_archive_units_run_valid_commands_that_may_write_their_targets() -> None:
    server = unit("fyrehose.service")["Service"]
    journal = f"/var/lib/{server['StateDirectory']}"
    service = unit("fyrehose-archive.service")["Service"]
    options = archive_options(service["ExecStart"].split())
    assert (options["journal"], options["engine"], options["follow"]) == (journal, "local", True)
    for found in (service, unit("fyrehose-archive-once.service")["Service"]):
        assert (found["DynamicUser"], found["User"]) == ("yes", "fyrehose"), "the server reads its subscription"
        states = {f"/var/lib/{name}" for name in found["StateDirectory"].split()}
        assert states == {journal, options["lake"]}
    assert service["RestartPreventExitStatus"].split() == ["2", str(JournalCorrupt.exit_status)]
    text = (DEPLOY / "systemd" / "fyrehose-archive-once.service").read_text()
    once, merge = (line.split() for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE))
    options = archive_options(once)
    assert (options["journal"], options["engine"], options["follow"]) == (journal, "local", False)
    runtime = unit("fyrehose-archive-once.service")["Service"]["RuntimeDirectory"]
    assert options["metrics"] == f"/run/{runtime}/archive.prom"
    assert optimize.make_context("optimize", merge[2:]).params["lake"] == options["lake"]
    timer = unit("fyrehose-archive-once.timer")
    assert timer["Timer"]["OnCalendar"] == "*:0/15"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_cron_job_runs_a_valid_command_and_never_two_at_once() -> None:
    text = (DEPLOY / "kubernetes" / "archive-cronjob.yaml").read_text()
    job = yaml.safe_load(text)
    assert (job["kind"], job["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    template = job["spec"]["jobTemplate"]["spec"]
    pod = template["template"]["spec"]
    (container,) = pod["containers"]
    token = container["command"][-1]
    mounted = container["volumeMounts"][0]["mountPath"]
    assert token == f"--token-file={mounted}/token"
    options = archive_options(container["command"][:-1])
    assert (options["engine"], options["follow"], options["subscription"]) == ("local", False, "lake")
    assert LakeStore.at(options["lake"]).remote
    (rule,) = template["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [2, JournalCorrupt.exit_status],
    }
    assert pod["restartPolicy"] == "Never", "a policy for failures needs it"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """On a machine without systemd-analyze, only the other tests check the units."""
    analyze = shutil.which("systemd-analyze")
    programs = str(Path(sys.executable).parent)
    for path in (DEPLOY / "systemd").iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/fyrehose/bin", programs))
    if analyze is not None:
        words = [analyze, "verify", *map(str, sorted(tmp_path.iterdir()))]
        result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_image_copies_existing_files_and_runs_as_its_own_user() -> None:
    text = DOCKERFILE.read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER fyrehose$", last, re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", last, re.MULTILINE)
    files = [name for words in copied for name in words.split()]
    assert files
    assert all((DEPLOY.parent / name).is_file() for name in files)


def locked(name: str) -> dict[str, str]:
    """Return the versions that a requirements file of the image pins; check that each has a hash."""
    text = (DEPLOY / "docker" / name).read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)(?: ;[^#]*?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
        assert match, f"{name} has a line without a version or a hash: {line[:80]}"
        found[match[1]] = match[2]
    return found


def missing(requirements: list[str], versions: dict[str, str]) -> list[str]:
    """Return the *requirements* that the pinned *versions* do not satisfy."""
    found = map(Requirement, requirements)
    pinned = {each: versions.get(re.sub(r"[-_.]+", "-", each.name).lower()) for each in found}
    return [str(each) for each, version in pinned.items() if version is None or version not in each.specifier]


def listed(text: str) -> list[str]:
    """Return the requirements of an option of setup.cfg."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_installs_versions_that_satisfy_the_package_and_every_hash_is_checked() -> None:
    text = DOCKERFILE.read_text()
    files = re.findall(r"pip install --no-cache-dir --require-hashes -r deploy/docker/(\S+)", text)
    assert sorted(files) == ["build-requirements.txt", "requirements.txt"]
    others = [line for line in re.findall(r"pip (?:install|wheel) (.*)", text) if "--require-hashes" not in line]
    assert all("--no-deps" in line for line in others), "nothing else is taken from an index"
    setup = ConfigParser()
    setup.read(DEPLOY.parent / "setup.cfg")
    makefile = (DEPLOY.parent / "Makefile").read_text()
    extras = re.findall(r"--extra (\S+)", makefile)
    assert extras == ["admin", "eventbus", "lumberjack"]
    wanted = listed(setup["options"]["install_requires"])
    wanted += [each for extra in extras for each in listed(setup["options.extras_require"][extra])]
    assert missing(wanted, locked("requirements.txt")) == []
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    assert missing(project["build-system"]["requires"], locked("build-requirements.txt")) == []


def test_a_lock_file_without_the_required_versions_is_noticed() -> None:
    assert missing(["h11 >= 0.16", "zope.interface >= 6"], {"h11": "0.14.0"}) == ["h11>=0.16", "zope.interface>=6"]
    assert missing(["Twisted[tls] >= 26.4"], {"twisted": "26.10.0"}) == []


def test_the_requirements_of_the_image_name_no_index() -> None:
    for name in ("requirements.txt", "build-requirements.txt"):
        text = (DEPLOY / "docker" / name).read_text()
        assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host|@ ", text)
