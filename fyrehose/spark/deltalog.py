"""Read from the log of a Delta table what delta-rs does not provide: all application transactions, changes, and damage.

in: the store of a table      out: the version of every application, by its name; files that changed; a damaged file
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

from pyarrow import ArrowException, fs, parquet

from fyrehose.spark.stores import LakeStore

#: The directory of the log.
LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_LAST = "_last_checkpoint"


def transactions(store: LakeStore) -> dict[str, int]:
    """Return the version of each application transaction of the log, by its name.

    :raises JournalUnreachable: the object store cannot be reached
    """
    files = store.files()
    found: dict[str, int] = {}
    with store.explained():
        names = _names(files)
        version, checkpoint = _checkpoint(names)
        for name in checkpoint:
            rows = parquet.read_table(f"{LOG}/{name}", filesystem=files, columns=["txn"])["txn"]
            found |= {row["appId"]: row["version"] for row in rows.drop_null().to_pylist() if row["appId"]}
        for name in sorted(names):
            entry = _ENTRY.fullmatch(name)
            if entry is not None and int(entry[1]) > version:
                found |= _transactions_of(_read(files, name))
    return found


def changes(store: LakeStore, since: int, until: int) -> list[str] | None:
    """Return the files that commits after version *since* added or removed, if they changed rows of the table.

    :return: None if an entry of the log does not exist any more
    :raises JournalUnreachable: the object store cannot be reached
    """
    files, found = store.files(), []
    with store.explained():
        for version in range(since + 1, until + 1):
            try:
                entry = _read(files, f"{version:020}.json")
            except FileNotFoundError:
                return None
            for line in entry.splitlines():
                action = json.loads(line)
                change = action.get("add") or action.get("remove")
                if change is not None and change["dataChange"]:
                    found.append(unquote(change["path"]))
    return found


def without_damaged_checkpoints(store: LakeStore) -> list[str]:
    """Rename damaged checkpoints to NAME.damaged, if the log says the same without them; return which files were bad.

    A checkpoint only saves time: the state of a table is that of an older checkpoint, or of none, and all entries
    since.  The file that names the last checkpoint is deleted with it.

    :return: empty if no checkpoint is damaged, or if an entry is missing or damaged, too
    :raises JournalUnreachable: the object store cannot be reached
    """
    with store.explained():
        files = store.files()
        names = _names(files)
        checkpoints = {name: int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))}
        bad = sorted(name for name in checkpoints if not _is_parquet(files, name))
        lost = {checkpoints[name] for name in bad}
        good = {-1, *checkpoints.values()} - lost
        stale = _LAST in names and _last_version(files) not in good
        if not (bad or stale) or next(_missing(files, names, max(good)), None) is not None:
            return []
        for name in bad:
            files.move(f"{LOG}/{name}", f"{LOG}/{name}.damaged")
        if stale:
            files.delete_file(f"{LOG}/{_LAST}")
        return bad or [_LAST]


def version_of(name: str) -> int | None:
    """Return the version of a checkpoint by its name; None if the name is not that of a checkpoint."""
    match = _CHECKPOINT.fullmatch(name)
    return None if match is None else int(match[1])


def _last_version(files: fs.FileSystem) -> int | None:
    """Return the version of the last checkpoint, as the log names it; None if that file is damaged."""
    try:
        return int(json.loads(_read(files, _LAST))["version"])
    except (ValueError, KeyError, TypeError):
        return None


def damage_of(store: LakeStore) -> str | None:
    """Return which file of the log is damaged or missing, and what to do, as text; None if no damage is found.

    :raises JournalUnreachable: the object store cannot be reached
    """
    with store.explained():
        said = next(_damages(store.files()), None)
    return said and f"{store.below(LOG)}/{said}; put it back from a copy, or archive into a new lake"


def _damages(files: fs.FileSystem) -> Iterator[str]:
    names = _names(files)
    version, checkpoint = _checkpoint(names)
    for name in checkpoint:
        if not _is_parquet(files, name):
            yield f"{name} is no valid checkpoint"
    yield from _missing(files, names, version)


def _missing(files: fs.FileSystem, names: set[str], version: int) -> Iterator[str]:
    """Yield which entries after *version* are missing or damaged."""
    versions = [int(entry[1]) for name in names if (entry := _ENTRY.fullmatch(name))]
    for number in range(version + 1, max(versions, default=-1) + 1):
        name = f"{number:020}.json"
        if name not in names:
            yield f"{name} is missing"
        elif not _is_json(_read(files, name)):
            yield f"{name} is no valid entry"


def _names(files: fs.FileSystem) -> set[str]:
    """Return the names of the files in the log."""
    return {info.base_name for info in files.get_file_info(fs.FileSelector(LOG))}


def _is_json(data: bytes) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in data.splitlines() if line)
    except ValueError:
        return False


def _is_parquet(files: fs.FileSystem, name: str) -> bool:
    try:
        parquet.read_table(f"{LOG}/{name}", filesystem=files)
    except (ArrowException, OSError):
        return False
    return True


def _checkpoint(names: set[str]) -> tuple[int, list[str]]:
    """Return the version of the last checkpoint (-1 if there is none), and the names of its files.

    The file ``_last_checkpoint`` only saves a listing of the log, and may be damaged or too old.
    """
    found: dict[int, list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        parts = [name for name in names if name.startswith(f"{match[1]}.checkpoint.") and f".{match[2]}." in name]
        if match[2] is None or len(parts) == int(match[2]):
            found.setdefault(int(match[1]), []).append(match[0])
    version = max(found, default=-1)
    return version, sorted(found.get(version, ()))


def _transactions_of(entry: bytes) -> dict[str, int]:
    # Most lines of a large entry describe files; these lines need not be parsed.
    actions = (json.loads(line) for line in entry.splitlines() if b'"txn"' in line)
    return {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}


def _read(files: fs.FileSystem, name: str) -> bytes:
    with files.open_input_stream(f"{LOG}/{name}") as file:
        return bytes(file.read())
