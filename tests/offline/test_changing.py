"""A command that changes the journal of a stopped server holds its lock, and explains a full or failed disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.errors import JournalFailed, JournalFull, JournalLocked
from fyrehose.journal.writer import NoRoom, SyncFailed
from fyrehose.offline.changing import changing


def test_the_journal_is_locked_until_the_change_has_ended(tmp_path: Path) -> None:
    with changing(tmp_path, "cannot be changed"), pytest.raises(JournalLocked), changing(tmp_path, ""):
        pass
    with changing(tmp_path, "cannot be changed"):
        pass


@pytest.mark.parametrize(
    ("error", "kind"), [(NoRoom("no space left on device"), JournalFull), (SyncFailed("I/O error"), JournalFailed)]
)
def test_a_full_or_failed_disk_is_explained_and_the_lock_is_released(
    tmp_path: Path, error: Exception, kind: type[Exception]
) -> None:
    advice = (
        f"{tmp_path} cannot be changed: {error}; free some space, or check the disk, and run the same command again"
    )
    with pytest.raises(kind) as raised, changing(tmp_path, "cannot be changed"):
        raise error
    assert str(raised.value) == advice
    with changing(tmp_path, "cannot be changed"):
        pass


def test_other_errors_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), changing(tmp_path, "cannot be changed"):
        (tmp_path / "input").read_text()
