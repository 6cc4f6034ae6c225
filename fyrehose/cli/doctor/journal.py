"""What `fyrehose doctor` finds in a journal's files, in its backups, and at the server that writes it."""

from __future__ import annotations

import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from fyrehose import __version__
from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.errors import FyrehoseError, JournalCorrupt, JournalError
from fyrehose.journal import scan
from fyrehose.journal.subscriptions import registered
from fyrehose.observe.meters import LONGEST_WRITE
from fyrehose.offline.verify import verify
from fyrehose.offline.view import View, believed_mark, differ, look
from fyrehose.offline.walk import Batch, Damaged, Log, walk
from fyrehose.options import counted, shown_size

DAY_S = 86_400.0
#: A clock that is more than this behind the newest record is reported, in seconds.
AHEAD_S = 60.0
#: The length from which a pause of the server's reactor is reported, in seconds.
PAUSE_S = 1.0
#: How long `systemctl` may take, in seconds.
SYSTEMCTL_S = 5.0


def journal(directory: Path, pid: int | None) -> Iterator[Finding]:
    """Report the state of the journal in *directory*: its durable mark, newest segment, and files set aside.

    :param pid: the server that has it open, if there is one
    """
    where = str(directory)
    if not directory.is_dir() or not scan.segments(directory):
        yield Finding(Level.NOTE, "journal", "there is none yet", where, "the server creates it at its first start")
        return
    mode, newest = (stat.S_IMODE(path.stat().st_mode) for path in (directory, scan.segments(directory)[-1].path))
    if mode & 0o002:
        what = "every user can delete files of its directory"
        yield Finding(Level.ERROR, "journal", what, where, f"chmod o-rwx {where}")
    elif mode & 0o001 and newest & 0o004:
        yield Finding(Level.WARNING, "journal", "every user can read its files", where, f"chmod o-rwx {where}")
    try:
        yield from _newest(directory, "open in a server" if pid else "no server has it open")
    except (FyrehoseError, OSError) as error:
        advice = "see `fyrehose help operating when the journal is damaged`"
        yield Finding(Level.ERROR, "journal", str(error), where, advice)
    aside = sorted(directory.glob("quarantine-*"))
    if aside:
        what = f"{counted(len(aside), 'file')} of damaged bytes set aside"
        yield Finding(Level.NOTE, "journal", what, where, "delete them when nobody needs them any more")
    yield from _readers(directory)


def _newest(directory: Path, state: str) -> Iterator[Finding]:
    """Verify the newest segment, up to the durable mark."""
    where, mark, log = str(directory), believed_mark(directory), Log.of(directory)
    if mark.copied or not mark.durable:
        what = "MARK is of another directory" if mark.copied else "MARK is missing or damaged"
        advice = f"fyrehose journal verify {where}; the next start writes it again"
        yield Finding(Level.WARNING, "journal", what, where, advice)
    newest = 0
    for found in walk(attrs.evolve(log, segments=log.segments[-1:])):
        if isinstance(found, Damaged):
            advice = f"fyrehose journal verify {where}, then restore the file from a backup"
            yield Finding(Level.ERROR, "journal", str(found.error()), where, advice)
            return
        if isinstance(found, Batch):
            newest = max(newest, found.header.time)
    text = f"{counted(len(log.segments), 'segment')}, durable up to {log.durable}, newest segment intact"
    yield Finding(Level.OK, "journal", f"{text}; {state}", where)
    ahead = newest / 1e6 - time.time()
    if ahead > AHEAD_S:
        what = f"the newest record is {ahead:,.0f} s ahead of this machine's clock"
        yield Finding(Level.WARNING, "clock", what, where, "set the clock; see `fyrehose help operating clocks`")


def _readers(directory: Path) -> Iterator[Finding]:
    """Report programs that subscribe to the journal's files, such as an archive, but have not read them for a day."""
    mark = believed_mark(directory).durable
    for each in registered(directory):
        idle, behind = time.time() - each.time / 1e6, max(0, mark - each.position)
        if behind and idle > DAY_S:
            what = f"subscription {each.name!r} is {shown_size(behind)} behind, and was last used {_ago(idle)} ago"
            advice = f"start that program, or: fyrehose journal subscriptions {directory} --delete {each.name}"
            yield Finding(Level.WARNING, "reader", what, str(directory), advice)


def backups(directory: Path, places: Sequence[Path], most_s: float, verifying: bool = False) -> Iterator[Finding]:
    """Report whether the backups in *places* are finished, and how far they are behind the journal in *directory*.

    :param most_s: how old a backup that is behind may be, in seconds
    :param verifying: whether to read every byte of the backups
    """
    if not places:
        advice = "pass --backup DIR; make one with: fyrehose journal backup; see `fyrehose help backup`"
        yield Finding(Level.NOTE, "backup", "no backup was checked, because none was named", "", advice)
        return
    try:
        origin = look(directory)
    except JournalError:
        return  # journal() has reported it
    for place in places:
        yield from _backup(origin, place, most_s, verifying)


def _backup(origin: View, place: Path, most_s: float, verifying: bool) -> Iterator[Finding]:
    where, advice = str(place), "run `fyrehose journal backup`, and find out why its timer did not"
    try:
        copy = look(place)
        written = max(path.stat().st_mtime for path in (place / scan.MARK_NAME, *place.glob("*.segment")))
    except (FyrehoseError, OSError, ValueError) as error:
        damaged = isinstance(error, JournalCorrupt)
        what = f"it is damaged: {error}" if damaged else f"it cannot be read: {error}"
        yield Finding(Level.ERROR, "backup", what, where, "back up into an empty directory" if damaged else advice)
        return
    if differ(origin.identity, copy.identity):
        what = "it is the backup of another journal"
        yield Finding(Level.ERROR, "backup", what, where, "back up into an empty directory")
        return
    behind, age = origin.mark - copy.mark, time.time() - written
    if behind < 0:
        what = (
            f"it is {shown_size(-behind)} ahead of the journal: a server was started in one of them, or the journal was"
        )
        advice = "back up into an empty directory, and keep this one until you know which of the two is right"
        yield Finding(Level.ERROR, "backup", f"{what} restored from an older copy", where, advice)
        return
    if not copy.vouched:
        what = "its end is unknown: it was never finished, or its files END and MARK were not copied"
        yield Finding(Level.WARNING, "backup", what, where, "run `fyrehose journal backup`")
        return
    state = "up to date" if not behind else f"{shown_size(behind)} behind, last written {_ago(age)} ago"
    yield from (
        _verified(place, state, where)
        if verifying
        else [
            Finding(
                Level.NOTE, "backup", f"{state}; not verified", where, f"fyrehose journal verify {where}, or --verify"
            )
        ]
    )
    if behind and age > most_s:
        yield Finding(Level.WARNING, "backup", f"last written {_ago(age)} ago", where, advice)


def _verified(place: Path, state: str, where: str) -> Iterator[Finding]:
    """Read every byte of the backup in *place*, and report whether it is undamaged."""
    try:
        problems = [str(problem) for problem in verify(place, most=1).problems]
    except (FyrehoseError, OSError) as error:
        problems = [str(error)]
    if problems:
        yield Finding(Level.ERROR, "backup", f"it is damaged: {problems[0]}", where, f"fyrehose journal verify {where}")
    else:
        yield Finding(Level.OK, "backup", f"{state}; every byte verified", where)


def server(remote: RemoteServer) -> Iterator[Finding]:
    """Report the problems that a running server shows in its status."""
    try:
        status = remote.status(limit=1)
    except FyrehoseError as error:
        advice = "pass --url, and --token-file if it has a token"
        yield Finding(Level.NOTE, "server", f"its admin listener was not asked: {error}", remote.url, advice)
        return
    where, state = remote.url, status["journal"]["state"]
    if state != "writable":
        advice = "see its log, and `fyrehose help operating when the disk is full`"
        yield Finding(Level.ERROR, "server", f"the journal is {state}: nothing is accepted", where, advice)
    else:
        yield Finding(Level.OK, "server", f"serving, up {_ago(status['uptime'])}, pid {status['pid']}", where)
    if status["version"] != __version__:
        what = f"it runs Fyrehose {status['version']}, and {__version__} is installed"
        yield Finding(Level.WARNING, "server", what, where, "restart it")
    waits = status["journal"].get("write_age", 0)
    if waits >= LONGEST_WRITE:
        what = f"it has not ended a write for {_ago(waits)}: no message is acknowledged until it does"
        yield Finding(Level.ERROR, "disk", what, where, "check the disk, and the log of the kernel (dmesg)")
    full_in = status["journal"].get("full_in")
    if full_in is not None and full_in < 7 * DAY_S:
        advice = "free some space, or lower journal.keep-bytes"
        yield Finding(Level.WARNING, "disk", f"full in {_ago(full_in)} at the present rate", where, advice)
    pause = status["reactor"].get("lag_p99")
    if pause is not None and pause > PAUSE_S:
        what = f"1% of its pauses take longer than {pause:.3g} s"
        yield Finding(Level.WARNING, "server", what, where, "is the CPU shared? See `fyrehose help performance`")
    refused = sorted(status["refusals"], key=lambda each: -each["count"])[:3]
    if refused:
        what = ", ".join(f"{each['protocol']} {each['cause']} {counted(each['count'], 'time')}" for each in refused)
        yield Finding(Level.NOTE, "refused", what, where, "the log names the peers; `fyrehose help closing` the causes")


def unit(pid: int, drain_s: float) -> Iterator[Finding]:
    """Report unsuitable limits of the systemd unit of the process *pid*; report nothing if it has no unit.

    :param drain_s: how long the server serves after SIGTERM
    """
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return
    name = groups.strip().rpartition("/")[2]
    if not name.endswith(".service"):
        return
    wanted = ("Restart", "TimeoutStopUSec", "WatchdogUSec", "UMask")
    words = ["systemctl", "show", name, *(f"--property={each}" for each in wanted)]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(Level.NOTE, "unit", f"systemctl does not describe it: {error}", name)
        return
    yield from judged_unit(name, dict(line.split("=", 1) for line in said.splitlines() if "=" in line), drain_s)


def judged_unit(name: str, found: dict[str, str], drain_s: float) -> Iterator[Finding]:
    """Report unsuitable settings of the unit *name*, whose properties `systemctl show` wrote as *found*."""
    lacks = []
    if found.get("Restart") == "no":
        lacks.append(("it is not restarted after a failure", "Restart=on-failure"))
    if found.get("WatchdogUSec") in ("0", "infinity"):
        lacks.append(("a server that hangs is not noticed", "WatchdogSec=30"))
    if seconds(found.get("TimeoutStopUSec", "infinity")) < drain_s + 30:
        lacks.append(("it may be killed while it drains and commits", f"TimeoutStopSec={drain_s + 80:g}"))
    if int(found.get("UMask", "0077"), 8) & 0o007 != 0o007:
        lacks.append(("others may read new files", "UMask=0077"))
    for what, advice in lacks:
        yield Finding(Level.WARNING, "unit", what, name, f"{advice}; see deploy/systemd/fyrehose.service")
    if not lacks:
        yield Finding(Level.OK, "unit", "restarts, watchdog, time to stop", name)


def seconds(span: str) -> float:
    """Return a time span of systemd, such as ``1min 30s``, in seconds."""
    if span == "infinity":
        return float("inf")
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": DAY_S, "w": 7 * DAY_S}
    total = 0.0
    for part in span.split():
        number = part.rstrip("abcdefghijklmnopqrstuvwxyz")
        total += float(number or 0) * units.get(part[len(number) :], 0)
    return total


def _ago(age: float) -> str:
    """Return an age as text for people, in the largest unit that fits."""
    for size, name in ((DAY_S, "day"), (3600, "hour"), (60, "minute")):
        if age >= size:
            return counted(int(age // size), name)
    return counted(max(0, int(age)), "second")
