"""Read from the log of a Delta table what delta-rs does not provide: all application transactions, changes, and damage.

in: the store of a table      out: the version of every application, by its name; files that changed; a damaged file
"""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

from pyarrow import ArrowException, fs, parquet

from fyrehose.spark.stores import LakeStore

#: The directory of the log.
LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")


def transactions(store: LakeStore) -> dict[str, int]:
    """Return the version of every application: from the last checkpoint and the later entries of the log.

    :raises JournalUnreachable: the object store cannot be reached
    """
    files, version = store.files(), -1
    found: dict[str, int] = {}
    with store.explained():
        listed = files.get_file_info(fs.FileSelector(LOG))
        if any(info.base_name == "_last_checkpoint" for info in listed):
            last = json.loads(_read(files, "_last_checkpoint"))
            version = last["version"]
            for name in _checkpoint(version, last.get("parts")):
                rows = parquet.read_table(f"{LOG}/{name}", filesystem=files, columns=["txn"])["txn"]
                found |= {row["appId"]: row["version"] for row in rows.drop_null().to_pylist() if row["appId"]}
        for name in sorted(info.base_name for info in listed):
            entry = _ENTRY.fullmatch(name)
            if entry is not None and int(entry[1]) > version:
                found |= _transactions_of(_read(files, name))
    return found


def changes(store: LakeStore, since: int, until: int) -> list[str] | None:
    """Return the files that versions after *since* added or removed together with their rows; None: some are unknown.

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


def damage_of(store: LakeStore) -> str | None:
    """Return which file of the log is damaged or missing, and what to do; None if none is found.

    :raises JournalUnreachable: the object store cannot be reached
    """
    files, said = store.files(), None
    with store.explained():
        names = {info.base_name for info in files.get_file_info(fs.FileSelector(LOG))}
        first = 0
        if "_last_checkpoint" in names:
            last = json.loads(_read(files, "_last_checkpoint"))
            first = last["version"] + 1
            for name in _checkpoint(last["version"], last.get("parts")):
                if name not in names:
                    said = f"{name} is missing"
                elif not _is_parquet(files, name):
                    said = f"{name} is no valid checkpoint"
        versions = sorted(int(entry[1]) for name in names if (entry := _ENTRY.fullmatch(name)))
        for version in range(first, versions[-1] + 1 if versions and said is None else 0):
            name = f"{version:020}.json"
            if name not in names:
                said = f"{name} is missing"
            elif not _is_json(_read(files, name)):
                said = f"{name} is no valid entry"
            if said is not None:
                break
    return said and f"{store.below(LOG)}/{said}; put it back from a copy, or archive into a new lake"


def _is_json(data: bytes) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in data.splitlines() if line)
    except ValueError:
        return False


def _is_parquet(files: fs.FileSystem, name: str) -> bool:
    try:
        parquet.read_metadata(f"{LOG}/{name}", filesystem=files)
    except ArrowException:
        return False
    return True


def _checkpoint(version: int, parts: int | None) -> list[str]:
    """Return the names of the files of a checkpoint."""
    if parts is None:
        return [f"{version:020}.checkpoint.parquet"]
    return [f"{version:020}.checkpoint.{part:010}.{parts:010}.parquet" for part in range(1, parts + 1)]


def _transactions_of(entry: bytes) -> dict[str, int]:
    # Most lines of a large entry are files, which need not be parsed.
    actions = (json.loads(line) for line in entry.splitlines() if b'"txn"' in line)
    return {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}


def _read(files: fs.FileSystem, name: str) -> bytes:
    with files.open_input_stream(f"{LOG}/{name}") as file:
        return bytes(file.read())
