"""What `fyrehose doctor` finds in a configuration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from fyrehose.cli.doctor import config as doctor_config
from fyrehose.cli.doctor.config import checked, configured, descriptors_wanted, running
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.errors import ConfigError
from fyrehose.testing.certificates import Authority

POLICY = '[[allow]]\nnetwork = "10.0.0.0/8"\npublish = "*"\n'


def found_in(folder: Path, text: str, policy: str = "") -> list[Finding]:
    """Return the findings of a configuration file with *text*, and with *policy* beside it."""
    file = folder / "fyrehose.toml"
    if policy:
        (folder / "policy.toml").write_text(policy)
        text = f'policy = "policy.toml"\n{text}'
    file.write_text(text)
    return list(checked(configured(file, None)))


def worse(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.subject) for each in findings if each.level > Level.OK]


BOUNDED = '[option.journal]\nkeep-bytes = "1G"\n'


def test_server_on_loopback_with_bounded_retention_has_no_warnings(tmp_path: Path) -> None:
    found = found_in(tmp_path, f'[listen]\nfigg = "tcp:8119:interface=127.0.0.1"\n{BOUNDED}')
    assert worse(found) == []
    assert found[0].where == str(tmp_path / "fyrehose.toml")


def test_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        found_in(tmp_path, "listn = 1")


def test_retention_without_bound_is_reported(tmp_path: Path) -> None:
    listen = '[listen]\nfigg = "tcp:8119:interface=127.0.0.1"\n'
    assert worse(found_in(tmp_path, listen)) == [(Level.WARNING, "retention")]
    assert worse(found_in(tmp_path, f'{listen}[option.journal]\nkeep-age = "7d"\n')) == [(Level.NOTE, "retention")]


def test_durability_that_loses_messages_is_noted(tmp_path: Path) -> None:
    text = f'[listen]\nfigg = "tcp:8119:interface=127.0.0.1"\n{BOUNDED}durability = "never"\n'
    assert worse(found_in(tmp_path, text)) == [(Level.NOTE, "durability")]


def test_public_address_without_policy_is_an_error(tmp_path: Path) -> None:
    found = found_in(tmp_path, f'[listen]\nfigg = "tcp:8119"\n{BOUNDED}')
    assert (Level.ERROR, "access") in worse(found)


@pytest.mark.parametrize(
    ("protocol", "endpoint", "advice"),
    [
        ("figg", "tcp:8119", "tls-certificate"),
        ("eventbus", "tcp:5556", "server-key"),
        ("backbone", "udp:2323", "private network"),
    ],
)
def test_public_address_without_encryption_is_reported(
    protocol: str, endpoint: str, advice: str, tmp_path: Path
) -> None:
    found = found_in(tmp_path, f'[listen]\n{protocol} = "{endpoint}"\n{BOUNDED}', POLICY)
    assert worse(found) == [(Level.WARNING, "encryption")]
    assert advice in next(each.advice for each in found if each.subject == "encryption")


@pytest.mark.parametrize(
    ("rule", "reported"),
    [
        ('network = "0.0.0.0/0"\nsubscribe = "*"', True),
        ('network = ["10.0.0.0/8", "::/0"]\npublish = "*"', True),
        ('network = "10.0.0.0/8"\npublish = "*"', False),
        ('network = "0.0.0.0/0"\ncertificate = "a"\npublish = "*"', False),
    ],
)
def test_rule_for_every_address_is_reported(rule: str, reported: bool, tmp_path: Path) -> None:
    listen = f'[listen]\nfigg = "tcp:8119:interface=127.0.0.1"\n{BOUNDED}'
    assert worse(found_in(tmp_path, listen, f"[[allow]]\n{rule}\n")) == [(Level.WARNING, "policy")] * reported


def test_readable_files_with_keys_or_tokens_are_reported(tmp_path: Path) -> None:
    for name in ("browsers.key", "token"):
        (tmp_path / name).write_text("k" * 40)
        (tmp_path / name).chmod(0o644)
    listen = f'[listen]\nadmin = "tcp:8118:interface=127.0.0.1"\n{BOUNDED}[option.admin]\ntoken-file = "token"\n'
    found = found_in(tmp_path, listen, '[[allow]]\nsigned = "browsers.key"\nsubscribe = "*"\n')
    assert worse(found) == [(Level.ERROR, "key of signed tokens"), (Level.ERROR, "admin.token-file")]


@pytest.mark.parametrize(
    ("left", "level"), [(-1, Level.ERROR), (3, Level.WARNING), (60, Level.OK)], ids=["ended", "soon", "valid"]
)
def test_end_of_a_certificate_is_reported(
    left: int, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = Authority(tmp_path).issue("server")
    ends = doctor_config.x509.load_pem_x509_certificate(Path(issued.certificate).read_bytes()).not_valid_after_utc

    class Now(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return ends - timedelta(days=left)

    Path(issued.key).chmod(0o600)
    monkeypatch.setattr(doctor_config, "datetime", Now)
    options = f'[option.figg]\ntls-certificate = "{issued.certificate}"\ntls-key = "{issued.key}"\n'
    found = found_in(tmp_path, f'[listen]\nfigg = "tcp:8119"\n{BOUNDED}{options}', POLICY)
    assert [each.level for each in found if each.subject == "certificate"] == [level]
    assert ends > datetime(2000, 1, 1, tzinfo=UTC)


def test_files_that_a_server_reads_only_at_its_start_are_examined(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("server")
    (tmp_path / "nats.password").write_text("secret")
    for name, mode in ((issued.certificate, 0o644), (issued.key, 0o604), (str(tmp_path / "nats.password"), 0o604)):
        Path(name).chmod(mode)
    ends = load_pem_x509_certificate(Path(issued.certificate).read_bytes()).not_valid_after_utc
    listen = f'[listen]\nfigg = "ssl:8119:privateKey={issued.key}:certKey={issued.certificate}:interface=127.0.0.1"\n'
    cluster = (
        f'[replication]\nname = "a"\nservers = "tls://127.0.0.1:4222"\ntls-certificate = "{issued.certificate}"\n'
        f'tls-key = "{issued.key}"\ntls-authorities = "nowhere.pem"\nuser = "a"\npassword-file = "nats.password"\n'
    )
    found = [each for each in found_in(tmp_path, f"{listen}{BOUNDED}{cluster}") if each.level > Level.OK]
    everybody = "every user can read it (mode 604)"
    assert sorted((each.level, each.subject, each.what) for each in found) == [
        (Level.WARNING, "certificate", f"ends on {ends:%Y-%m-%d}"),
        (Level.WARNING, "certificate", f"ends on {ends:%Y-%m-%d}"),
        (Level.ERROR, f"figg.privateKey={issued.key}", everybody),
        (Level.ERROR, "replication.password-file", everybody),
        (Level.ERROR, "replication.tls-authorities", "cannot be read: No such file or directory"),
        (Level.ERROR, "replication.tls-key", everybody),
    ]
    assert {each.advice for each in found if each.subject == "certificate"} == {"renew it, then restart the server"}


def test_descriptors_are_counted_for_all_connections(tmp_path: Path) -> None:
    file = tmp_path / "fyrehose.toml"
    listen = "".join(f'{name} = "tcp:81{n}:interface=127.0.0.1"\n' for n, name in ((17, "http"), (19, "figg")))
    file.write_text(f"[listen]\n{listen}")
    default, asked = descriptors_wanted(configured(file, None).config)
    file.write_text(f"{file.read_text()}[option.figg]\nmax-connections = 100000\n")
    more, then = descriptors_wanted(configured(file, None).config)
    assert more > 100_000 > default
    assert (asked, then) == (False, True)


def test_configuration_of_a_process_that_is_no_server_is_unknown() -> None:
    assert running(1 << 30) is None
