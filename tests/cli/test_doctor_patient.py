"""What `fyrehose doctor` looks at: a file, a directory, a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.cli import doctor_patient
from fyrehose.cli.doctor_config import configured
from fyrehose.cli.doctor_patient import examine, remote
from fyrehose.cli.findings import Level
from fyrehose.cli.remote import DEFAULT_URL


def config(folder: Path, text: str) -> Path:
    file = folder / "fyrehose.toml"
    file.write_text(text)
    return file


def test_journal_of_the_configuration_is_examined(tmp_path: Path) -> None:
    file = config(tmp_path, 'data-dir = "journal"\n')
    found = list(examine(file=file))
    assert {each.where for each in found if each.subject in ("journal", "server")} == {str(tmp_path / "journal")}


def test_options_of_the_file_are_used(tmp_path: Path) -> None:
    file = config(tmp_path, '[option.server]\nmemory = "512GiB"\n')
    assert [each.level for each in examine(file=file) if each.subject == "memory"] == [Level.WARNING]


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ('admin = "tcp:9000:interface=127.0.0.1"', "http://127.0.0.1:9000"),
        ('admin = "tcp:9000:interface=\\\\:\\\\:1"', "http://[::1]:9000"),
        ('figg = "tcp:9000:interface=127.0.0.1"', DEFAULT_URL),
    ],
)
def test_admin_listener_of_the_configuration_is_asked(listen: str, url: str, tmp_path: Path) -> None:
    source = configured(config(tmp_path, f"[listen]\n{listen}\n"), None)
    assert remote(source).url == url


def test_admin_listener_can_be_named(tmp_path: Path) -> None:
    source = configured(config(tmp_path, '[listen]\nadmin = "tcp:9000:interface=127.0.0.1"\n'), None)
    assert remote(source, "http://h:1").url == "http://h:1"


def test_server_is_asked_for_its_status_only_if_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_patient.doctor_journal, "server", lambda remote: pytest.fail("no server runs"))
    assert [each.what for each in examine(data_dir=tmp_path) if each.subject == "server"] == [
        "none has this journal open"
    ]
