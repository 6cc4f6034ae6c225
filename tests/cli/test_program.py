"""What a command answers when it was typed wrong, and how it ends when nobody reads its output."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.cli.client.values import SINCE
from fyrehose.cli.command import COMMANDS
from fyrehose.cli.program import Commands
from fyrehose.errors import ConfigError, FyrehoseError, JournalFull
from fyrehose.journal.files import lock
from tests.doubles.opened_journal import opened

PROGRAMS = Path(sys.executable).parent
#: The exit status of a command that was typed wrong, and of one whose output nobody reads, as the shell reports it.
MISUSED, UNREAD = 2, 141


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="fyrehose")


def test_commands_of_other_modules_are_imported_when_they_are_used() -> None:
    commands = Commands("fyrehose.cli", {**COMMANDS, "not_there": "lost"})
    assert "top" in commands
    assert len(commands) == len(list(commands)) == sum(len(names.split()) for names in COMMANDS.values()) + 1
    assert commands["top"] is main.commands["top"]
    assert commands.get("nothing") is None
    commands["other"] = click.Command("other")
    assert {"top", "lost", "other"} <= set(commands)
    del commands["other"], commands["top"]
    assert not {"top", "other"} & set(commands)
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        commands["lost"]


def ended(*words: str, cwd: Path, program: str = "fyrehose") -> tuple[int, str]:
    """Return the exit status and the standard error of a command in a process of its own."""
    process = subprocess.run([PROGRAMS / program, *words], capture_output=True, text=True, cwd=cwd, timeout=120)
    return process.returncode, process.stderr


def journal_in(directory: Path, messages: int = 1, stream: str = "s") -> None:
    """Write a journal with so many messages in one stream."""
    bench = opened(directory)
    bench.append(*[b"x" * 100] * messages, stream=stream)
    bench.close()


@pytest.mark.parametrize("text", ["START", "Latest", "LATEST"])
def test_words_of_option_since_may_be_in_either_case(text: str) -> None:
    assert SINCE.convert(text, None, None) == SINCE.convert(text.lower(), None, None)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("fyrehose", ("serve", "--port", "1")),
        ("fyrehose", ("serve", "--option", "figg.max-payload=lots")),
        ("fyrehose", ("serve", "--listen", "figg=tpc:1")),
        ("fyrehose", ("serve", "--listen", "figg=tcp:8119")),
        ("fyrehose", ("serve", "--policy", "nowhere.toml")),
        ("fyrehose", ("serve", "--daemon", "--logfile", "-")),
        ("fyrehose", ("publish", "--protocol", "fig", "x")),
        ("fyrehose", ("tail", "--protocol", "figg")),
        ("twistd", ("-n", "fyrehose", "--option", "figg.max-payload=lots")),
        ("twistd", ("-n", "fyrehose", "--listen", "figg=tpc:1")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_misuse_of_any_command_is_one_line_and_status_2(program: str, words: tuple[str, ...], tmp_path: Path) -> None:
    status, said = ended(*words, cwd=tmp_path, program=program)
    assert (status, said.count("\n")) == (MISUSED, 1), said
    assert list(tmp_path.iterdir()) == []


def test_invalid_configuration_has_the_status_of_misuse() -> None:
    assert ConfigError.exit_status == click.UsageError.exit_code == MISUSED


LONG = [
    ("journal", "dump", "data"),
    ("journal", "dump", "data", "--format", "json"),
    ("journal", "export", "data", "-", "--format", "ndjson"),
    ("journal", "stats", "data"),
    ("journal", "verify", "data"),
    ("protocols", "relink"),
    ("completion", "bash"),
    ("--help",),
    ("journal", "dump", "--help"),
]


@pytest.mark.parametrize("words", LONG, ids="-".join)
def test_command_whose_output_nobody_reads_ends_quietly_as_by_sigpipe(words: tuple[str, ...], tmp_path: Path) -> None:
    journal_in(tmp_path / "data", 2_000 if "data" in words else 1)
    command = f'"{PROGRAMS / "fyrehose"}" {" ".join(words)} | true'
    process = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (process.stdout, process.stderr) == (f"{UNREAD}\n", "")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("serve", "-o", "figg.max_conections=5"), "did you mean max-connections?"),
        (("serve", "-o", "figg.maxconnections=5"), "did you mean max-connections?"),
        (("serve", "-o", "joural.keep-bytes=1"), "did you mean journal?"),
        (("serve", "-o", "journal.keepage=1"), "did you mean keep-age?"),
        (("serve", "--listen", "fig=tcp:1"), "did you mean figg?"),
        (("serve", "--datadir", "x"), "did you mean --data-dir?"),
        (("serve", "--config", "keys.toml"), "did you mean data-dir?"),
        (("serve", "--config", "tables.toml"), "did you mean option?"),
        (("serve", "--config", "streams.toml"), "did you mean keep-age?"),
        (("serve", "--config", "options.toml"), "did you mean max-payload?"),
        (("serve", "--config", "replication.toml"), "did you mean takeover-after?"),
        (("serve", "--policy", "policy.toml"), "did you mean subscribe?"),
        (("serve", "--policy", "allows.toml"), "did you mean allow?"),
        (("serve", "--log-format", "jsn"), "did you mean json?"),
        (("publish", "--protocol", "relnk", "x"), "did you mean relink?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_unknown_name_is_answered_with_the_nearest_one(
    words: tuple[str, ...], nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.toml").write_text('data_dirs = "x"\n')
    Path("tables.toml").write_text("[options.figg]\nmax-payload = 5\n")
    Path("options.toml").write_text("[option.figg]\nmax_paylod = 5\n")
    Path("streams.toml").write_text('[[stream]]\nname = "x"\nkeep_age = "1d"\n')
    Path("replication.toml").write_text("[replication]\ntake-over-after = 5\n")
    Path("policy.toml").write_text('[[allow]]\nnetwork = "::1"\nsubscribes = "*"\n')
    Path("allows.toml").write_text('[[allows]]\nnetwork = "::1"\n')
    status, said = ended(*words, cwd=tmp_path)
    assert status == MISUSED
    assert nearest in said


@pytest.mark.parametrize("directory", ["file", "file/below"])
def test_file_in_place_of_the_data_directory_is_named(directory: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, said = ended("serve", "--data-dir", directory, cwd=tmp_path)
    assert status == MISUSED
    wrong = f"cannot use the journal's directory {tmp_path / directory}: {tmp_path / 'file'} is a file, not a directory"
    assert said == f"fyrehose serve: {wrong}; choose another directory\n"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.EACCES, "the user {user} may not write there; change the owner of {here}, or choose another directory"),
        (errno.EROFS, "{here} is on a read-only file system; mount it for writing, or choose another directory"),
    ],
)
def test_error_for_an_unwritable_directory_says_what_to_do(
    error: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *args: Any, **more: Any) -> None:
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FyrehoseError) as refused:
        lock(tmp_path / "a" / "b")
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert str(refused.value) == (
        f"cannot use the journal's directory {tmp_path}/a/b: {advice.format(user=user, here=tmp_path)}"
    )


def test_counts_of_one_use_the_singular(tmp_path: Path) -> None:
    journal_in(tmp_path / "data")
    said = run("journal", "stats", str(tmp_path / "data")).output
    assert "1 segment, " in said
    assert ", 1 record, 1 stream; " in said
    said = run("journal", "verify", str(tmp_path / "data")).output
    assert "1 record of 1 stream verified, in 3 batches and 1 segment, " in said
    said = run("journal", "export", str(tmp_path / "data"), str(tmp_path / "s.ndjson")).output
    assert said.startswith("1 record, ")
    said = run("journal", "backup", str(tmp_path / "data"), str(tmp_path / "copy")).output
    assert said.startswith("1 record in 3 batches (")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("protocols", "figg"), "figg.max-payload 16MiB "),
        (("protocols", "figg"), "figg.timeout 30s "),
        (("protocols", "backbone"), "backbone.destination-rate 64MiB "),
        (("serve", "-o", "figg.max-connections=0"), "max-connections must be at least 1, not 0"),
        (("serve", "-o", "server.memory=1k"), "memory must be at least 1MiB, not 1KiB"),
        (("serve", "-o", "eventbus.max-payload=1G"), "max-payload may be at most 16MiB, not 1GiB"),
        (("serve", "-o", "eventbus.client-keys=any"), "client-keys requires server-key"),
        (("serve", "-o", "relink.max-payload=1G"), "max-payload must be from 1 to 16MiB, not 1GiB"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_options_are_printed_as_they_are_typed(words: tuple[str, ...], answer: str, tmp_path: Path) -> None:
    process = subprocess.run([PROGRAMS / "fyrehose", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert answer in " ".join((process.stdout + process.stderr).split())


@pytest.mark.parametrize(
    ("words", "status", "answer"),
    [
        ("tail orders", 2, "unexpected argument 'orders'; name the stream with --stream orders"),
        ("tail --stream s --count all", 2, "'all': expected a whole number from 1"),
        ("publish --window 0 x", 2, "'0': expected a whole number from 1 to 100000"),
        ("journal dump data --stream s --from x", 2, "'x': expected a whole number from 1 to 281474976710655"),
        ("journal dump data --stream t", 0, "no records of stream 't'; `fyrehose journal stats data` lists the"),
        ("journal dump data --stream s --from 9", 0, "the journal has no records of stream 's' from number 9 on; "),
        ("journal backup http://127.0.0.1:1 copy", 1, "http://127.0.0.1:1 does not answer: Connection refused; is "),
        ("journal stats .", 1, "it has no segment files; name a server's --data-dir"),
        ("stats --token-file nowhere", 2, "cannot read --token-file nowhere: No such file or directory"),
        ("stats --token-file data", 2, "cannot read --token-file data: Is a directory"),
        ("stats --url https://h --ca nowhere", 2, "cannot read --ca nowhere: No such file or directory"),
        ("stats --url https://h --ca text", 2, "invalid --ca text: expected a PEM file of certificates"),
        ("journal serve data --listen 127.0.0.1:0 --token-file nowhere", 2, "cannot read --token-file nowhere: No"),
        ("serve --listen figg=8119", 2, "expected for example figg=tcp:8119:interface=127.0.0.1"),
        ("serve --option figg.tls-certificate=no.pem", 2, "cannot read figg.tls-certificate no.pem: No such file or"),
    ],
)
def test_error_says_what_is_wrong_where_and_what_to_do(words: str, status: int, answer: str, tmp_path: Path) -> None:
    journal_in(tmp_path / "data")
    (tmp_path / "text").write_text("no certificate")
    found, said = ended(*words.split(), cwd=tmp_path)
    assert answer in said
    assert found == status


def test_port_that_does_not_speak_tls_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]

        def answer() -> None:
            peer, _ = plain.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        status, said = ended("stats", "--url", f"https://127.0.0.1:{port}", cwd=tmp_path)
        answering.join()
    assert (status, said) == (
        1,
        f"fyrehose: the server at https://127.0.0.1:{port} does not speak TLS; pass --url http://127.0.0.1:{port}\n",
    )


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_error_of_a_backup_names_the_disk_that_is_full(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal_in(tmp_path / "data")
    monkeypatch.setattr(os, "pwrite", full)
    result = run("journal", command, str(tmp_path / "data"), str(tmp_path / "copy"))
    why = "cannot be written: No space left on device; free some space, or use another directory"
    assert (result.exit_code, result.stderr) == (
        JournalFull.exit_status,
        f"fyrehose: the journal {tmp_path / 'copy'} {why}\n",
    )
