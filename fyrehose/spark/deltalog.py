"""Read the application transactions of a Delta table from its log: delta-rs tells only those whose names are known.

in: the store of a table      out: the version of every application, by its name
"""

from __future__ import annotations

import json
import re

from pyarrow import fs, parquet

from fyrehose.spark.stores import LakeStore

_LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")


def transactions(store: LakeStore) -> dict[str, int]:
    """Return the version of every application: from the last checkpoint, and the entries of the log behind it.

    :raises JournalError: the object store cannot be reached
    """
    files, version = store.files(), -1
    found: dict[str, int] = {}
    with store.explained():
        listed = files.get_file_info(fs.FileSelector(_LOG))
        if any(info.base_name == "_last_checkpoint" for info in listed):
            last = json.loads(_read(files, "_last_checkpoint"))
            version = last["version"]
            for name in _checkpoint(version, last.get("parts")):
                rows = parquet.read_table(f"{_LOG}/{name}", filesystem=files, columns=["txn"])["txn"]
                found |= {row["appId"]: row["version"] for row in rows.drop_null().to_pylist() if row["appId"]}
        for name in sorted(info.base_name for info in listed):
            entry = _ENTRY.fullmatch(name)
            if entry is not None and int(entry[1]) > version:
                found |= _transactions_of(_read(files, name))
    return found


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
    with files.open_input_stream(f"{_LOG}/{name}") as file:
        return bytes(file.read())
