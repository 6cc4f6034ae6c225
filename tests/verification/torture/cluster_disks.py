"""Slow down the disk of a running process: strace delays each of its syncs (Debian's package strace).

strace also stops the process at its other system calls, which costs some CPU time.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

#: How long strace may take to begin, and to end, in seconds.
PATIENCE = 30.0
CALLS = "fsync,fdatasync"


def has_strace() -> bool:
    return shutil.which("strace") is not None


class SlowDisk:
    """Let each sync of the process *pid* take *seconds* longer, from now until :meth:`stop`.

    :param record: the file for the traced syncs; strace's messages go to the same name with the suffix ``.said``
    :raises RuntimeError: strace may not trace the process
    """

    def __init__(self, pid: int, seconds: float, record: Path) -> None:
        self._record, said = record, record.with_suffix(".said")
        inject = f"inject={CALLS}:delay_exit={round(seconds * 1e6)}"
        words = ["strace", "-f", "-e", "signal=none", "-e", f"trace={CALLS}", "-e", inject, "-o", str(record)]
        with said.open("wb") as errors:
            self._strace = subprocess.Popen([*words, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=errors)
        deadline = time.monotonic() + PATIENCE
        while "attached" not in said.read_text():
            if self._strace.poll() is not None or time.monotonic() > deadline:
                self._strace.kill()
                self._strace.wait()
                raise RuntimeError(f"strace cannot trace process {pid}: {said.read_text()}")
            time.sleep(0.01)

    def stop(self) -> int:
        """End the delays, if the process still runs.

        :return: how many syncs were delayed
        """
        self._strace.terminate()
        self._strace.wait(PATIENCE)
        return self._record.read_text(errors="replace").count("(DELAYED)")
