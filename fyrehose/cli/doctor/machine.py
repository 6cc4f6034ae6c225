"""What `fyrehose doctor` finds about the machine: versions, the clock, memory, file descriptors, the disk."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import attrs
from cryptography.hazmat.backends.openssl import backend as openssl

from fyrehose import __version__, kernels
from fyrehose.bench.disk import VOLATILE, Mount, mount_of, sync_times
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.journal.room import enough
from fyrehose.journal.settings import JournalSettings
from fyrehose.options import counted, exact_size, shown_size

#: File systems whose syncs depend on another machine.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "9p", "fuse.sshfs", "virtiofs")
#: Options of mounts with which a sync does not reach the disk.
UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "nobarriers")
#: How many syncs are timed, and the largest median and 99th percentile that are not reported, in seconds.
SYNCS = 100
SLOW_P50_S, SLOW_P99_S = 0.02, 0.2
#: A shorter sync, in seconds, cannot have written anything to a device.
TOO_FAST_S = 0.000_01
#: The file with the limit of the memory of this container or unit.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
#: The beginning of the name of the file whose syncs are timed.
PROBE = ".doctor"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9.]+)")
#: From <sys/timex.h>: the size of struct timex, the offset of its status, and the bit of the status by which nothing
#: sets the clock.
_TIMEX_SIZE, _TIMEX_STATUS, _STA_UNSYNC = 208, 40, 0x40


def versions(
    required: Sequence[str] | None = None, native: bool = kernels.NATIVE, pure: bool = kernels.PURE
) -> Iterator[Finding]:
    """Report the versions of Python and of the packages that Fyrehose uses, and packages that are too old for it.

    :param required: the requirements, such as ``attrs>=24.1``; None: those of the installed package
    :param native: whether compiled kernels are in use
    :param pure: whether the environment selects the kernels in pure Python
    """
    text = (
        f"Fyrehose {__version__}, Python {platform.python_version()}, Twisted {version('Twisted')}, "
        f"{' '.join(openssl.openssl_version_text().split()[:2])}"
    )
    yield Finding(Level.OK, "versions", text)
    for line in (requires("fyrehose") or ()) if required is None else required:
        found = None if ";" in line else _REQUIREMENT.match(line)
        if found is None:
            continue
        name, least = found[1], found[2]
        try:
            present = version(name)
        except PackageNotFoundError:
            advice = f"pip install '{name}>={least}'"
            yield Finding(Level.ERROR, "versions", f"{name} is not installed", name, advice)
            continue
        if _numbers(present) < _numbers(least):
            advice = f"pip install --upgrade '{name}>={least}': older ones have known defects"
            yield Finding(Level.WARNING, "versions", f"{name} {present} is older than {least}", name, advice)
    if native:
        yield Finding(Level.OK, "kernels", "native")
    else:
        # pip keeps the wheel that it has built without a compiler, and would install that again.
        build = "install a C compiler, then: pip install --force-reinstall --no-deps --no-cache-dir fyrehose"
        advice = "unset FYREHOSE_PURE" if pure else build
        yield Finding(Level.WARNING, "kernels", "pure Python: hot loops are several times slower", "", advice)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:3])


def clock() -> Iterator[Finding]:
    """Report whether something, such as NTP, sets the clock."""
    libc, timex = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(_TIMEX_SIZE)
    if libc.adjtimex(timex) < 0:
        yield Finding(Level.NOTE, "clock", f"the kernel did not return its state: {os.strerror(ctypes.get_errno())}")
        return
    status = ctypes.c_int.from_buffer(timex, _TIMEX_STATUS).value
    if status & _STA_UNSYNC:
        advice = "run chrony, or systemd-timesyncd: records are stamped by this clock, and keep-age goes by it"
        yield Finding(Level.WARNING, "clock", "nothing synchronizes it", "", advice)
    else:
        yield Finding(Level.OK, "clock", "synchronized")


def memory(budget: int, limit_file: Path = CGROUP_LIMIT) -> Iterator[Finding]:
    """Report whether the machine has the memory that the server may use for messages.

    :param budget: ``server.memory``, in bytes
    :param limit_file: the file with the limit of this container or unit
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _number_in(limit_file)
    has, where = (total, "this machine") if limit is None or limit > total else (limit, "this container or unit")
    if 2 * budget > has:
        advice = f"set server.memory to {shown_size(has // 4)} or less, or give it more memory"
        what = f"server.memory is {shown_size(budget)} of {shown_size(has)}"
        yield Finding(Level.WARNING, "memory", what, where, advice)
    else:
        yield Finding(Level.OK, "memory", f"{shown_size(has)}, of which messages may use {shown_size(budget)}", where)


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None


def descriptors(wanted: int, asked: bool, pid: int | None) -> Iterator[Finding]:
    """Report whether the file descriptors suffice for all connections that the listeners may have.

    :param wanted: how many descriptors all these connections need
    :param asked: whether an option sets the number of connections; if it is the default, fewer descriptors are good
        enough
    :param pid: the running server; None: the limit is that of this shell
    """
    limit, where = _descriptor_limit(pid)
    if limit < wanted:
        advice = f"LimitNOFILE={wanted} in the unit, or `ulimit -n {wanted}`; until then max-connections is reduced"
        what = f"limit {limit:,}, and the listeners may need {wanted:,}"
        yield Finding(Level.WARNING if asked else Level.NOTE, "descriptors", what, where, advice)
    else:
        yield Finding(Level.OK, "descriptors", f"limit {limit:,}, and the listeners may need {wanted:,}", where)
    try:
        used = None if pid is None else sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        used = None
    if used is not None and used > 0.8 * limit:
        advice = "find out who connects (`fyrehose stats`), or raise LimitNOFILE="
        yield Finding(Level.WARNING, "descriptors", f"{used:,} of {limit:,} are open", where, advice)


def _descriptor_limit(pid: int | None) -> tuple[int, str]:
    """Return the hard limit of file descriptors, and the process whose limit it is."""
    if pid is not None:
        try:
            text = Path(f"/proc/{pid}/limits").read_text()
        except OSError:
            text = ""
        found = re.search(r"^Max open files\s+\S+\s+(\d+)", text, re.MULTILINE)
        if found:
            return int(found[1]), f"process {pid}"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (hard if hard != resource.RLIM_INFINITY else 1 << 30), "this shell"


@attrs.frozen
class Disk:
    """What the machine says about a disk.

    :ivar total: its size in bytes
    :ivar free: its free bytes
    :ivar inodes: how many inodes it has, and how many of them are free
    :ivar mount: how it is mounted
    """

    total: int
    free: int
    inodes: tuple[int, int]
    mount: Mount

    @classmethod
    def of(cls, directory: Path) -> Disk:
        """Return the disk of *directory*."""
        usage, nodes = shutil.disk_usage(directory), os.statvfs(directory)
        return cls(usage.total, usage.free, (nodes.f_files, nodes.f_favail), mount_of(directory.resolve()))


def disk(
    directory: Path,
    journal: JournalSettings,
    look: Callable[[Path], Disk] = Disk.of,
    time_syncs: Callable[[Path, int], list[float]] = sync_times,
) -> Iterator[Finding]:
    """Report free space and inodes, the file system, and how long a sync takes.

    :param directory: the directory of the journal; if it does not exist yet, its nearest parent is examined
    :param journal: the options of the journal
    :param look: returns the disk of a directory
    :param time_syncs: returns the sorted durations of so many syncs of a new file, in seconds
    """
    there = next(each for each in (directory, *directory.absolute().parents) if each.is_dir()).absolute()
    where = str(there)
    found = look(there)
    yield from _space(found, where, journal)
    mount = found.mount
    if mount.kind in VOLATILE:
        yield Finding(Level.ERROR, "disk", f"{mount.kind}: a restart loses everything", where, "use a real disk")
    elif mount.kind in REMOTE:
        advice = "use a local disk, and `fyrehose journal backup` to copy it elsewhere"
        yield Finding(Level.WARNING, "disk", f"{mount.kind}: syncs depend on another machine", where, advice)
    elif mount.kind == "overlay":
        advice = "mount a volume at the data directory"
        yield Finding(
            Level.WARNING, "disk", "overlay: the journal is deleted together with the container", where, advice
        )
    for option in set(mount.options) & set(UNSAFE_OPTIONS):
        advice = "mount it with barriers: a power cut can lose what was synced"
        yield Finding(Level.ERROR, "disk", f"mounted with {option}", where, advice)
    if "ro" in mount.options:
        yield Finding(Level.ERROR, "disk", "mounted read-only", where, "see dmesg for errors, then mount it rw")
    else:
        yield from _syncs(there, time_syncs)


def _space(usage: Disk, where: str, journal: JournalSettings) -> Iterator[Finding]:
    min_free, keep_bytes = journal.min_free, journal.keep_bytes
    inodes, free_inodes = usage.inodes
    text = f"{shown_size(usage.free)} of {shown_size(usage.total)} free"
    advice = "free some space, use a larger disk, or set journal.keep-bytes"
    if usage.total < enough(min_free) + journal.segment_size:
        less, smaller = (exact_size(1 << (usage.total // part).bit_length() - 1) for part in (8, 32))
        advice = f"set journal.min-free = {less} and journal.segment-size = {smaller}, or use a larger disk"
        both = f"journal.min-free ({shown_size(min_free)}) and a segment ({shown_size(journal.segment_size)})"
        yield Finding(Level.ERROR, "disk", f"{text}: never enough for {both}, so messages are refused", where, advice)
    elif usage.free < min_free:
        what = f"{text}: less than journal.min-free ({shown_size(min_free)}), so messages are refused"
        yield Finding(Level.ERROR, "disk", what, where, advice)
    elif usage.free < max(4 * min_free, usage.total // 20):
        yield Finding(
            Level.WARNING, "disk", f"{text}; below {shown_size(min_free)} messages are refused", where, advice
        )
    else:
        yield Finding(Level.OK, "disk", text, where)
    if keep_bytes > usage.total - min_free:
        what = f"journal.keep-bytes is {shown_size(keep_bytes)}, more than the disk of {shown_size(usage.total)} holds"
        advice = f"set it below {shown_size((usage.total - min_free) * 0.9)}: the journal fills the disk before"
        yield Finding(Level.WARNING, "disk", what, where, advice)
    if inodes and free_inodes < inodes // 50:
        what = f"{counted(free_inodes, 'inode')} of {inodes:,} free"
        yield Finding(Level.WARNING, "disk", what, where, "delete small files: each segment needs three")


def _syncs(there: Path, time_syncs: Callable[[Path, int], list[float]]) -> Iterator[Finding]:
    try:
        found = time_syncs(there / f"{PROBE}-{os.getpid()}", SYNCS)
    except OSError as error:
        advice = "run this command as the server's user to time syncs"
        yield Finding(Level.NOTE, "sync", f"not timed: {error.strerror}", str(there), advice)
        return
    p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    text = f"write and fdatasync: half within {p50 * 1000:.3g} ms, 99% within {p99 * 1000:.3g} ms"
    if p50 > SLOW_P50_S or p99 > SLOW_P99_S:
        advice = "a publisher with one message at a time waits as long; use an SSD, or find what else writes there"
        yield Finding(Level.WARNING, "sync", text, str(there), advice)
    elif p50 < TOO_FAST_S:
        advice = "nothing reaches a device in that time: a virtual disk may ignore syncs"
        yield Finding(Level.WARNING, "sync", text, str(there), advice)
    else:
        yield Finding(Level.OK, "sync", text, str(there))


def permissions(path: Path, what: str, private: bool) -> Iterator[Finding]:
    """Report whether other users can read or change a file of the server.

    :param private: whether only the server's user and group may read the file
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield Finding(
            Level.ERROR, what, f"cannot be read: {error.strerror}", str(path), "create it, or correct the path"
        )
        return
    if private and mode & 0o007:
        advice = f"chmod o-rwx {path}, and replace it if others may have read it"
        yield Finding(Level.ERROR, what, f"every user can read it (mode {mode:o})", str(path), advice)
    elif mode & 0o002:
        yield Finding(Level.ERROR, what, f"every user can change it (mode {mode:o})", str(path), f"chmod o-w {path}")
