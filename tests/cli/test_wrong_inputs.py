"""What `fyrehose serve` answers to a wrong input: one line that says what is wrong, where it is, and what to do."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fyrehose.testing.certificates import Authority

PROGRAM = Path(sys.executable).parent / "fyrehose"
LOCAL = "--listen figg=tcp:0:interface=127.0.0.1"
TLS = f"{LOCAL} -o figg.tls-certificate"
OWN, OWN_KEY = f"{TLS}=authority-server.pem", "-o figg.tls-key=authority-server.key"
LOCKED = f"{TLS}=authority-locked.pem -o figg.tls-key=authority-locked.key"
SSL = "--listen figg=ssl:0:interface=127.0.0.1:privateKey"
CLIENTS = "-o figg.tls-client-auth=required -o figg.tls-authorities"
LISTENS = '[listen]\nfigg = "tcp:0:interface=127.0.0.1"\n'
NATS = '[replication]\nname = "a"\nservers = ["nats://127.0.0.1:1"]\n'


def ended(words: str, folder: Path) -> tuple[int, str]:
    """Return the exit status and the standard error of `fyrehose serve` with *words*."""
    process = subprocess.run(
        [PROGRAM, "serve", *shlex.split(words)], capture_output=True, text=True, cwd=folder, timeout=60
    )
    return process.returncode, process.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with certificates, rubbish, and a directory that has files but no journal."""
    folder = tmp_path_factory.mktemp("wrong")
    authority = Authority(folder)
    authority.issue("server")
    authority.issue("other")
    authority.issue("locked", passphrase="secret")
    server = (folder / "authority-server.pem").read_bytes()
    for name, content in (
        ("rubbish", b"rubbish"),
        ("empty", b""),
        ("binary", bytes(range(256))),
        ("cut.pem", server[: len(server) // 2]),
        ("passphrase", b"wrong\n"),
        ("policy.toml", b'[[allow]]\nnetwork = "127.0.0.1"\npublish = "*"\n'),
        ("rubbish.pid", b"rubbish\n"),
    ):
        (folder / name).write_bytes(content)
    (folder / "photos").mkdir()
    (folder / "photos" / "holiday.jpg").write_bytes(b"x")
    return folder


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (f"{TLS}=rubbish", "cannot use figg.tls-certificate rubbish: it has no complete certificate in PEM form"),
        (f"{TLS}=empty", "cannot use figg.tls-certificate empty: it has no complete certificate"),
        (f"{TLS}=binary", "cannot use figg.tls-certificate binary: it has no complete certificate"),
        (f"{TLS}=cut.pem", "cannot use figg.tls-certificate cut.pem: it has no complete certificate"),
        (f"{TLS}=authority-server.key", "figg.tls-certificate authority-server.key: it has no complete cert"),
        (f"{TLS}=nowhere", "cannot read figg.tls-certificate nowhere: No such file or directory"),
        (f"{TLS}=photos", "cannot read figg.tls-certificate photos: Is a directory"),
        (OWN, "no complete private key in PEM form (-----BEGIN PRIVATE KEY-----); add the key to it, or set figg"),
        (f"{OWN} -o figg.tls-key=rubbish", "figg.tls-key rubbish: it has no complete private key in PEM form"),
        (f"{OWN} -o figg.tls-key=nowhere", "cannot read figg.tls-key nowhere: No such file or dir"),
        (f"{OWN} -o figg.tls-key=authority-other.key", "its key is not that of the certificate in authority-"),
        (LOCKED, "authority-locked.key: its key is encrypted; set figg.tls-key-passphrase to a file with the passph"),
        (f"{LOCKED} -o figg.tls-key-passphrase=passphrase", "the passphrase in passphrase does not decrypt its key"),
        (f"{OWN} {OWN_KEY} -o figg.tls-key-passphrase=passphrase", "not encrypted; remove figg.tls-key-passphrase"),
        (f"{OWN} {OWN_KEY} {CLIENTS}=rubbish", "figg.tls-authorities rubbish: it has no complete certificate in"),
        (f"{SSL}=rubbish", "its privateKey and certKey must be PEM files with a private key and its certificate"),
        (f"{SSL}=nowhere", "/nowhere: No such file or directory"),
    ],
)
def test_file_of_tls_that_cannot_be_used_is_named_with_its_option(words: str, answer: str, folder: Path) -> None:
    check(ended(words, folder), answer)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("figg=tcp:8119:interface=300.1.1.1", "=300.1.1.1 is no IP address; expected one of this machine, such"),
        ("backbone=udp:2323:interface=300.1.1.1", "interface=300.1.1.1 is no IP address"),
        ("eventbus=tcp:5556:interface=300.1.1.1", "interface=300.1.1.1 is no IP address"),
        ("http=tcp:8117:interface=127.0.0.1.5", "interface=127.0.0.1.5 is no IP address"),
        ("http=tcp:8117:interface=fe80\\:\\:xyz", "interface=fe80::xyz is no IP address"),
        ("figg=tcp:8119:interface=lo", "lo is a network interface; expected an address, which `ip address show lo`"),
        ("figg=tcp:8119:interfac=127.0.0.1", "it has an unknown part 'interfac'; did you mean interface?"),
        ("figg=tcp:99999:interface=127.0.0.1", "expected a port from 0 to 65535 after tcp:, not '99999'"),
        ("figg=tcp:127.0.0.1:8119", "expected a port from 0 to 65535 after tcp:, not '127.0.0.1'"),
        ("figg=tcp", "expected a port from 0 to 65535 after tcp:, not ''"),
        ("figg=tpc:8119", "not a Twisted endpoint (Unknown endpoint type: 'tpc'); expected for example figg=tcp:8119"),
        (f"figg=unix:{'x' * 108}", "its path has 108 bytes, and a Unix socket at most 107"),
        (f"figg=unix:address={'ü' * 54}:mode=600", "its path has 108 bytes, and a Unix socket at most 107"),
    ],
)
def test_part_of_an_endpoint_that_is_wrong_is_named(words: str, answer: str, folder: Path) -> None:
    status, said = ended(f"--listen '{words}'", folder)
    assert said.startswith(f"fyrehose serve: invalid --listen {words}: ")
    check((status, said), answer)


@pytest.mark.parametrize(
    ("content", "line", "answer"),
    [
        ('log-level = "loud"', 1, ": log-level is 'loud'; expected debug, info, warn, error or critical"),
        ('log-level = "warning"', 1, ": log-level is 'warning'; expected debug, info, warn, error or critical; did"),
        ('log-format = "jsn"', 1, ": log-format is 'jsn'; expected text or json; did you mean json?"),
        ('data-dir = ""', 1, ": data-dir is ''; expected a path"),
        ('[[stream]]\nkeep-age = "1d"', 1, ", in [[stream]] table 1: name is missing; expected a pattern such as "),
        ('[[stream]]\nname = ""\nkeep-age = "1d"', 2, ", in [[stream]] table 1: name is ''; expected a pattern"),
        ('[option.figg]\nmax-payload = "big"', 2, ", in [option.figg]: max-payload is 'big'; expected a size, "),
        ("[option.figg]\nmax-connections = 0", 2, ", in [option.figg]: max-connections must be at least 1, not 0"),
        ("[option.figg]\nmax-conections = 5", 2, ", in [option.figg]: unknown key 'max-conections'; did you mean"),
        ("[option.fig]\nmax-payload = 5", 1, ", in [option.fig]: unknown scope 'fig' of options; expected one of"),
        ('[listen]\nfig = "tcp:8119"', 2, ", in [listen]: unknown protocol 'fig'; expected one of"),
        ('[listen]\nfigg = "tcp:1:interface=300.1.1.1"', 2, ", in [listen]: figg is 'tcp:1:interface=300.1.1.1': "),
        (f'[listen]\nfigg = "unix:/run/{"x" * 108}"', 2, ", in [listen]: figg is 'unix:/run/xxxxx"),
        ("[option.journal]\nkeep-bytes = 10", 2, ", in [option.journal]: keep-bytes is 10; expected 0, or at least"),
        ("[option.journal]\nmin-free = 10", 2, ", in [option.journal]: min-free is 10; expected 0, or at least 1KiB"),
        (f'{LISTENS}[option.relink]\nmax-payload = "1M"', 3, ", in [option.relink]: it has no effect, because re"),
        (f'{LISTENS}[option."figg/tls"]\nmax-payload = "1M"', 3, ", in [option.'figg/tls']: it has no effect, because"),
        (f'{NATS}user = "a"', 4, ", in [replication]: it needs both user and password-file, or neither"),
        (f'{NATS}tls-key = "a"', 4, ", in [replication]: it needs both tls-certificate and tls-key, or neither"),
        (f'{NATS}replicas = "three"', 4, ", in [replication]: replicas is 'three'; expected a whole number"),
        ('[replication]\nname = "a"', 1, ", in [replication]: servers is missing; expected addresses such as"),
    ],
)
def test_error_in_a_configuration_file_names_file_line_table_and_key(
    content: str, line: int, answer: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fyrehose.toml"
    file.write_text(content)
    check(ended(f"--config {file}", folder), f"invalid --config {file}, line {line}{answer}")


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (
            f'{LISTENS}[option.figg]\ntls-certificate = "rubbish"',
            "{0}/rubbish: it has no complete certificate in PEM form (-----BEGIN CERTIFICATE-----) (--config {0}/w",
        ),
        ('[listen]\nfigg = "tcp:0"', "add interface=127.0.0.1 (--config {0}/wrong.toml)"),
        (f'{NATS}tls-authorities = "rubbish"', "[replication] cannot use tls-authorities {0}/rubbish: expected PEM"),
        (f'{NATS}credentials = "no"', "[replication] cannot read credentials {0}/no: No such file or directory"),
        ('policy = "nowhere.toml"', "cannot read --policy {0}/nowhere.toml: No such file or directory"),
    ],
)
def test_error_found_after_the_file_is_read_names_what_the_file_says(content: str, answer: str, folder: Path) -> None:
    (folder / "wrong.toml").write_text(content)
    check(ended("--config wrong.toml", folder), answer.format(folder))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--log-level loud", "invalid --log-level 'loud': expected debug, info, warn, error or critical"),
        ("-o journal.keep-bytes=10", "'10' for option journal.keep-bytes: expected 0, or at least 1KiB; a number"),
        (f"{LOCAL} -o relink.max-payload=1M", "options of 'relink' without a listener; add --listen relink=ENDPOINT"),
        ("--data-dir ''", "invalid --data-dir '': expected a directory"),
        (f"{LOCAL} --data-dir photos", "it has other files ('holiday.jpg'); choose an empty or new directory"),
        (f"{LOCAL} --logfile nowhere/log", "cannot write --logfile nowhere/log: there is no directory nowhere"),
        (f"{LOCAL} --pidfile nowhere/pid", "cannot write --pidfile nowhere/pid: there is no directory nowhere"),
        (f"{LOCAL} --profile nowhere/p", "cannot write --profile nowhere/p: there is no directory nowhere"),
        (f"{LOCAL} --logfile photos", "cannot write --logfile photos: it is a directory; name a file in it"),
        (f"{LOCAL} --pidfile photos", "cannot write --pidfile photos: it is a directory; name a file in it"),
        (f"{LOCAL} --chroot nowhere", "invalid --chroot 'nowhere': there is no such directory"),
        (f"{LOCAL} --rundir nowhere", "invalid --rundir 'nowhere': there is no such directory"),
        (f"{LOCAL} --daemon --pidfile rubbish.pid", "rubbish.pid: it has 'rubbish', no process id; remove the file"),
        ("--config binary", "invalid --config {0}/binary: not TOML: "),
        ("--policy photos", "cannot read --policy {0}/photos: Is a directory"),
    ],
)
def test_wrong_option_is_named_with_its_value(words: str, answer: str, folder: Path) -> None:
    check(ended(words, folder), answer.format(folder))
    assert not (folder / "data").exists()
    assert list((folder / "photos").iterdir()) == [folder / "photos" / "holiday.jpg"]


def check(found: tuple[int, str], answer: str) -> None:
    status, said = found
    assert answer in said
    assert (status, said.count("\n")) == (2, 1), said


@pytest.mark.parametrize("protocol", ["figg", "http", "eventbus", "admin", "backbone"])
def test_port_in_use_is_answered_with_a_remedy(protocol: str, tmp_path: Path) -> None:
    kind, name = (socket.SOCK_DGRAM, "udp") if protocol == "backbone" else (socket.SOCK_STREAM, "tcp")
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if name == "tcp":
            taken.listen()
        port = taken.getsockname()[1]
        status, said = ended(f"--listen {protocol}={name}:{port}:interface=127.0.0.1", tmp_path)
    assert status == 1
    assert said == (
        f"fyrehose serve: {protocol} ({name}:{port}:interface=127.0.0.1) cannot listen: 127.0.0.1 port {port}: Address "
        f"already in use; use another port, or stop the program that `ss -lnp 'sport = :{port}'` shows\n"
    )


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        ("tcp:0:interface=203.0.113.7", "this machine has no address 203.0.113.7: `ip address` lists those that"),
        ("unix:nowhere/sock", "No such file or directory; make its directory first"),
        ("unix:policy.toml", "another program listens there, or it is no socket: use another path"),
    ],
)
def test_endpoint_where_the_server_cannot_listen_is_answered_with_a_remedy(
    endpoint: str, answer: str, folder: Path, tmp_path: Path
) -> None:
    status, said = ended(f"--data-dir {tmp_path} --policy policy.toml --listen figg={endpoint}", folder)
    assert said.startswith(f"fyrehose serve: figg ({endpoint}) cannot listen: ")
    assert answer in said
    assert (status, said.count("\n")) == (1, 1)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    """Yield the process id of a server in the background, whose pid file is in *tmp_path*."""
    assert ended("--daemon --listen figg=unix:sock", tmp_path)[0] == 0
    file = tmp_path / "fyrehose.pid"
    while not file.exists() or not file.read_text().strip():
        time.sleep(0.05)
    process = int(file.read_text())
    yield process
    with suppress(ProcessLookupError):
        os.kill(process, 15)


def test_second_daemon_is_refused_in_one_line(daemon: int, tmp_path: Path) -> None:
    check(
        ended("--daemon --listen figg=unix:sock", tmp_path),
        f"already: fyrehose.pid has the process id {daemon}; stop it with `kill {daemon}`",
    )


def test_directory_of_a_new_file_system_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "data" / "lost+found").mkdir(parents=True)
    (tmp_path / "data" / ".hidden").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Address already in use" in ended(f"--listen figg=tcp:{port}:interface=127.0.0.1", tmp_path)[1]
    assert (tmp_path / "data" / "MARK").exists()
