#!/usr/bin/env python3
"""Generate every state in which a power cut may leave the journal's files, and check how recovery handles each.

    reorder.py [--count N] [--seed S] [--choices C] [--turns T] [--durability MODE] [--sabotage]

N histories are recorded: a journal is opened, appended to, rolled, its oldest segments deleted, and mostly closed, on
files that log every call of the disk.  Then the power is cut after each step of a history.  The states that the cut may
leave have all unsynced writes, none, only one, or all but one of them, and C random selections with torn writes
(`tests.doubles.disk`).  The journal opens each new state, which is checked as in power.py; for some states, so are the
states that a second cut leaves during recovery.

Needs no root and no real disk: the rules of what a disk may do suffice.  The exit status is 1 if a rule was broken.
With --sabotage the journal's syncs do nothing, to test that this program notices it.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.logger import globalLogBeginner

sys.path.insert(0, str(Path(__file__).parent))

import power_model
import power_writer

from fyrehose.journal.settings import JournalSettings, durability
from tests.doubles.disk import Noted, RecordingFiles, WatchedFiles, images

#: In how many states of a history the power is cut a second time, during recovery.
TWICE = 12


class Bench:
    """A directory for the states, and the problems that were found."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self.root, self.arguments, self.dice = root, arguments, random.Random(arguments.seed)
        self.mode = durability(arguments.durability)
        self.problems: list[str] = []
        self.steps = self.states = self.twice = 0
        self.seen: set[bytes] = set()

    def history(self, number: int) -> None:
        """Record a history, and check every state that a power cut may leave of it."""
        directory = self.root / "journal"
        directory.mkdir()
        dice = self.dice
        settings = JournalSettings(
            durability=self.mode,
            min_free=0,
            segment_size=dice.choice((4 << 10, 8 << 10, 64 << 10)),
            keep_bytes=dice.choice((0, 0, 12 << 10)),
        )
        model = power_model.Model(directory, self.mode.mode == "batch")
        files = RecordingFiles(directory)
        if self.arguments.sabotage:
            files.sync = lambda fd: None  # type: ignore[method-assign]
        self._use(model, files, settings, dice.choice((2, self.arguments.turns)))
        self.cut(files, model, settings, f"history {number}", again=True)
        shutil.rmtree(directory)

    def _use(self, model: power_model.Model, files: RecordingFiles, settings: JournalSettings, turns: int) -> None:
        """Use a journal, and record its reports between the calls of the disk."""
        writer = power_writer.Writer(
            copy.deepcopy(model), files, settings, lambda *words: files.note(words), self.dice.randrange(1 << 30)
        )
        writer.live(turns)

    def cut(
        self, files: RecordingFiles, model: power_model.Model, settings: JournalSettings, what: str, again: bool = False
    ) -> None:
        """Check the states that power cuts may leave after each step of the recorded history."""
        known = copy.deepcopy(model)
        self.seen.clear()  # a state that was right before may be wrong after this report
        twice = set(self.dice.sample(range(len(files.log) + 1), min(TWICE, len(files.log)))) if again else set()
        for upto in range(len(files.log) + 1):
            if upto and isinstance(step := files.log[upto - 1], Noted):
                self.seen.clear()
                self.problems += [f"{what}, step {upto}: {p}" for p in known.hear_one(*step.what)]  # type: ignore[misc]
            self.steps += 1
            for number, image in enumerate(images(files, upto, self.dice, self.arguments.choices)):
                if not self._new(image):
                    continue
                name = f"{what}, step {upto}, state {number}"
                self._look(image, known, settings, name, twice=upto in twice and number < 4)
                if self.problems:
                    return

    def _new(self, image: dict[str, bytes]) -> bool:
        digest = hashlib.blake2b(digest_size=16)
        for name, content in sorted(image.items()):
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
        new = digest.digest() not in self.seen
        self.seen.add(digest.digest())
        return new

    def _look(
        self, image: dict[str, bytes], known: power_model.Model, settings: JournalSettings, what: str, twice: bool
    ) -> None:
        """Open a state, and check it; if ``twice``, cut the power again during this recovery."""
        directory = self.root / "left"
        directory.mkdir()
        for name, content in image.items():
            directory.joinpath(name).write_bytes(content)
        model = copy.deepcopy(known)
        model.directory = directory
        said: list[tuple[Any, ...]] = []
        files = RecordingFiles(directory) if twice else WatchedFiles()
        note = files.note if isinstance(files, RecordingFiles) else said.append
        writer = power_writer.Writer(model, files, settings, lambda *words: note(words), 1)
        writer.live(2 if twice else 0)
        self.states += 1
        if isinstance(files, RecordingFiles):
            said += [step.what for step in files.log if isinstance(step, Noted)]  # type: ignore[misc]
        heard = copy.deepcopy(known)
        problems = [problem for words in said for problem in heard.hear_one(*words)]
        shutil.rmtree(directory)
        self.problems += [f"{what}: {p}" for p in problems]
        if not any(words[0] == "found" for words in said):
            self.problems.append(f"{what}: the journal was not checked")
        if isinstance(files, RecordingFiles):
            self.twice += 1
            seen, self.seen = self.seen, set()
            self.cut(files, known, settings, f"{what}, cut again")
            self.seen = seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3, help="histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--choices", type=int, default=4, help="how many random states after each step")
    parser.add_argument("--turns", type=int, default=12, help="how often a history appends at most")
    parser.add_argument("--durability", default="batch")
    parser.add_argument("--sabotage", action="store_true")
    arguments = parser.parse_args()
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="fyrehose-reorder-", dir=base))
    began = time.monotonic()
    bench = Bench(root, arguments)
    try:
        for number in range(arguments.count):
            bench.history(number)
            if bench.problems:
                break
    finally:
        shutil.rmtree(root)
    print(
        f"{arguments.count} histories of a journal with durability {arguments.durability} (seed {arguments.seed}), cut "
        f"after each of {bench.steps} steps: {bench.states} states recovered, {bench.twice} of them cut again while "
        f"they were; {len(bench.problems)} violations, {time.monotonic() - began:.0f} s"
    )
    for problem in bench.problems[:20]:
        print(f"VIOLATION: {problem}")
    return 1 if bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
