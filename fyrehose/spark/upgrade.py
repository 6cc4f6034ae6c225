"""Convert a lake that an older version wrote to a Delta table, in place; no Parquet file is rewritten.

    LAKE/_fyrehose/000000000001.json    commits: ranges of positions, and the files of each
    LAKE/data/round=START-END-RANDOM/stream_key=KEY/date=YYYY-MM-DD/*.parquet

One commit of the Delta table names all files.  Then the old log is removed; until then the conversion can be repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltalake.transaction import AddAction

from fyrehose.errors import JournalCorrupt, JournalError, JournalLocked
from fyrehose.journal import format as fmt
from fyrehose.journal.offline.places import place
from fyrehose.spark.counting import account_of
from fyrehose.spark.lake import OLD_DATA, OLD_LOG, PARTITION, UPGRADED, File, Lake, Progress, host_of
from fyrehose.spark.plan import check
from fyrehose.spark.stores import LakeStore

_VERSION = 1
_DATE = re.compile(r"/date=([^/]+)/")


def upgrade(location: str | Path, journal: str, server: str | None = None) -> int:
    """Convert a lake, and return how many files it has; its journal can be archived into it from then on.

    :param journal: the journal that was archived into the lake
    :param server: name of the journal in the lake; by default its host
    :raises JournalError: the lake is not one of an older version, or its log is damaged
    :raises JournalCorrupt: the lake is of another journal
    :raises JournalLocked: an archive of an older version writes to the lake
    """
    store = LakeStore.at(location)
    if store.remote:
        raise JournalError(f"{store} is not a lake of an older version: those were always in directories")
    path = store.directory
    log = path / OLD_LOG
    if not log.is_dir():
        raise JournalError(f"{path} is not a lake of an older version: it has no directory {OLD_LOG}")
    lock = os.open(log / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalLocked(f"an archive writes to the lake {path}; stop it first") from error
        commits = list(_commits(log))
        files = _converted(Lake(store), commits, journal, server) if commits else 0
        shutil.rmtree(log)
    finally:
        os.close(lock)
    return files


def _converted(lake: Lake, commits: list[dict[str, Any]], journal: str, server: str | None) -> int:
    source = place(journal)
    view, end, chain = source.view(), commits[-1]["end"], commits[-1]["chain"]
    check(source, view, max(view.start, end), end)
    if view.start <= end < view.mark:
        account = account_of(source, view, end, min(view.mark, end + fmt.SEGMENT_HEADER.size + 1))
        if None not in (chain, account.continued) and chain != account.continued:
            raise JournalCorrupt(f"the lake {lake} is not of the journal {journal}: they differ at position {end}")
    actions = [_action(commit, file) for commit in commits for file in commit["files"]]
    lake.check([File(path=action.path, size=action.size, rows=0) for action in actions])
    name = lake.admit(view.identity, server, host_of(journal))
    if lake.progress(view.identity) is None:
        lake.set_properties({UPGRADED: name})
        gaps = [(*gap, end - 1) for commit in commits for gap in commit["gaps"]]
        after = Progress(server=name, position=end, chain=chain)
        rows = sum(commit["rows"] for commit in commits)
        about = {"server": name, "start": commits[0]["start"], "end": end, "rows": rows}
        lake.commit(view.identity, None, after, actions, gaps, about)
    return len(actions)


def _commits(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the commits of an old log.

    :raises JournalError: one is damaged or missing
    """
    end = None
    for number, path in enumerate(sorted(log.glob("*.json")), 1):
        try:
            commit = json.loads(path.read_bytes())
            follows = int(path.stem) == number and commit["version"] == _VERSION and end in (None, commit["start"])
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path} is damaged: {error}; put it back from a copy") from error
        if not follows:
            raise JournalError(f"{path} does not follow on the commit before it: one is missing in {log}")
        end = commit["end"]
        yield commit


def _action(commit: dict[str, Any], file: dict[str, Any]) -> AddAction:
    path = f"{OLD_DATA}/{commit['directory']}/{file['path']}"
    match = _DATE.search(path)
    if match is None:
        raise JournalError(f"{path} is in no directory of a date; the lake was not written by Fyrehose")
    least, most = {"seq": file["first"]}, {"seq": file["last"]}
    if file["stream"] is not None:
        least |= {"stream": file["stream"]}
        most |= {"stream": file["stream"]}
    stats = {"numRecords": file["rows"], "minValues": least, "maxValues": most, "nullCount": {}}
    return AddAction(
        path=path,
        size=file["size"],
        partition_values={PARTITION: match[1]},
        modification_time=commit["time"] // 1000,
        data_change=True,
        stats=json.dumps(stats, ensure_ascii=False),
    )
