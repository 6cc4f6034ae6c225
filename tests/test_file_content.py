"""The content of a file that an option names is compared by digest, and described where it is a certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.file_content import FileContent
from fyrehose.testing.certificates import Authority


def test_a_certificate_is_described_by_its_serial_and_its_end(tmp_path: Path) -> None:
    content = FileContent.at(Authority(tmp_path).issue("server").certificate)
    assert content.about.startswith("serial ")
    assert ", until 20" in content.about


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"a token", b"-----BEGIN CERTIFICATE-----\nrubbish"])
def test_other_files_are_compared_only(data: bytes) -> None:
    assert FileContent.of(data) == FileContent.of(bytes(data))
    assert FileContent.of(data) != FileContent.of(data + b"\n")
    assert FileContent.of(data).about == ""


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert FileContent.at(str(tmp_path / "none")).about == "cannot be read: No such file or directory"
