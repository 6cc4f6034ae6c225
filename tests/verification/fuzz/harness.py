"""The common part of the fuzzers: turn bytes into decisions, run each decoder in a process, and watch time and memory.

    DECODERS = {"server": server, ...}          functions that take bytes, and raise if anything is wrong
    if __name__ == "__main__": sys.exit(harness.main(__file__, DECODERS))

    python tests/verification/fuzz/fuzz_NAME.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--seconds S] [--corpus DIR]
        [--unled]

With atheris (the extra ``fuzz``), coverage guides the inputs, which begin with those kept in
``tests/verification/fuzz/corpus/NAME-DECODER``.  Without atheris, or with --unled, inputs are random bytes and kept
inputs that are joined and overwritten; without instrumentation two or three times as many run in the same time.  With
--corpus, new inputs that reach new code are written to DIR/NAME-DECODER, and --unled reads them from there.  A fuzzer
ends with an error and the input in hexadecimal at the first crash, at an execution of more than a second, or when the
process has grown by more than 64 MiB, or temporarily by 256 MiB.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

try:
    import atheris
except ImportError:
    atheris = None

#: Whether coverage guides this process; the parent process fuzzes nothing, so it avoids the cost of instrumentation.
LED = atheris is not None and "--here" in sys.argv and "--unled" not in sys.argv

T = TypeVar("T")
Decoder = Callable[[bytes], None]

#: The limits of one execution in seconds, and of the growth of the process in KiB: lasting (GROWTH) and temporary
#: (NEED); a message of 16 MiB is copied several times while it is made and read.
SLOWEST = 1.0
GROWTH = 64 << 10
NEED = 256 << 10
#: The longest input, in bytes.
LONGEST = 512
CORPUS = Path(__file__).with_name("corpus")


def instrumented(*packages: str) -> AbstractContextManager[Any]:
    """Return a context that instruments the modules of ``packages`` for coverage when they are imported."""
    if not LED:
        return nullcontext()
    logging.getLogger().setLevel(logging.ERROR)  # atheris logs a line for each module
    return atheris.instrument_imports(include=list(packages))  # type: ignore[no-any-return]


class Dice:
    """Makes decisions from the bytes of an input, so that most inputs lead to valid data; after its end all are 0.

    :ivar edges: limits around which some of the numbers lie: one below, at, or one above
    """

    def __init__(self, data: bytes, edges: Sequence[int] = ()) -> None:
        self.data, self.at, self.edges = data, 0, edges

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, end: int) -> int:
        """Return a number from 0 to ``end`` - 1."""
        value = self.byte() if end <= 256 else int.from_bytes(self.take(8), "little")
        return value % end

    def one_in(self, n: int) -> bool:
        return self.byte() % n == 1

    def choice(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; fewer at the end."""
        begin, self.at = self.at, self.at + size
        return self.data[begin : self.at]

    def number(self, bits: int) -> int:
        """Return a number of *bits* bits: small, or at an edge, or any."""
        top = 1 << bits
        kind = self.byte()
        if kind < 160:
            return kind % 12
        if kind < 220 and self.edges:
            return (self.choice(self.edges) + self.choice((-1, 0, 1))) % top
        if kind < 220:
            return (top + self.choice((-1, -2, 0, 1, -9))) % top
        return int.from_bytes(self.take(bits // 8), "big")

    def blob(self) -> bytes:
        """Return bytes, mostly few."""
        kind = self.byte()
        if kind < 200:
            return self.take(kind % 8)
        return bytes((kind,)) * self.choice((30, 255, 256, 600, 1500))

    def damaged(self, data: bytes) -> bytes:
        """Return ``data``, now and then with random changes."""
        changed = bytearray(data)
        while self.one_in(4) and changed:
            at = self.below(len(changed)) if len(changed) <= 256 else self.below(1 << 32) % len(changed)
            how = self.byte() % 4
            if how == 0:
                changed[at:at] = self.take(1 + self.byte() % 4)
            elif how == 1:
                del changed[at : at + 1 + self.byte() % 8]
            elif how == 2:
                changed[at] ^= 1 << self.byte() % 8
            else:
                changed[at : at + 4] = self.choice((b"\xff" * 4, bytes(4), b"\0\0\0\1", b"\x7f\xff\xff\xff"))
        return bytes(changed)

    def pieces(self, data: bytes, most: int = 6) -> list[bytes]:
        """Return ``data`` cut into a few pieces, or into about 64 equal ones if the input is used up."""
        if not self:
            size = max(7, len(data) // 64)
            return [data[at : at + size] for at in range(0, len(data), size)]
        cuts = sorted(self.below(1 << 16) % (len(data) + 1) for _ in range(self.byte() % most))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Chance(Random):
    """A Python random generator whose numbers come from an input, so that coverage guides them; 0 after its end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.dice = Dice(data)

    def __bool__(self) -> bool:
        return bool(self.dice)

    def random(self) -> float:
        return int.from_bytes(self.dice.take(2), "big") / (1 << 16)

    def getrandbits(self, k: int, /) -> int:
        size = k + 7 >> 3
        return int.from_bytes(self.dice.take(size), "big") >> 8 * size - k


class Watched:
    """A decoder whose time and memory are measured in each execution."""

    def __init__(self, name: str, decoder: Decoder, executions: int, seconds: float) -> None:
        self.name, self.decoder, self.executions, self.seconds = name, decoder, executions, seconds
        self.done = 0
        self.before = self.peak_before = 0
        self.slowest = 0.0
        self.began = time.monotonic()

    def __call__(self, data: bytes) -> None:
        began = time.process_time()
        try:
            self.decoder(data)
        except BaseException:
            print(f"{self.name}: execution {self.done}, input {data.hex()}", file=sys.stderr, flush=True)
            raise
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        assert took < SLOWEST, f"an execution took {took:.2f} s, input {data.hex()}"
        self.done += 1
        if self.done <= min(2_000, self.executions // 2 + 1):
            self.before, self.peak_before = _resident(), _peak()
        if self.done % 1_000_000 == 0:
            print(f"{self.name}: {self.done:,}", flush=True)
        if self.done == self.executions or time.monotonic() - self.began > self.seconds:
            self._report()
            os._exit(0)  # without libFuzzer's own report

    def _report(self) -> None:
        grown, needed = _resident() - self.before, _peak() - self.peak_before
        print(
            f"{self.name}: {self.done:,} executions in {time.monotonic() - self.began:.0f} s, slowest "
            f"{self.slowest * 1000:.1f} ms, grown by {grown >> 10} MiB, by {needed >> 10} MiB at the most",
            flush=True,
        )
        assert grown < GROWTH, f"the process has grown by {grown >> 10} MiB"
        assert needed < NEED, f"the process has temporarily grown by {needed >> 10} MiB"


def _resident() -> int:
    """Return the resident memory of the process, in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 10


def _peak() -> int:
    """Return the largest resident memory that the process ever had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _random_input(random: Random, kept: Sequence[bytes]) -> bytes:
    """Return random bytes, or one of the *kept* inputs with random changes."""
    if not kept or random.random() < 0.5:
        return random.randbytes(random.choice((4, 16, 60, 200, LONGEST)))
    data = bytearray(random.choice(kept))
    if random.random() < 0.3:
        data[random.randint(0, len(data)) :] = random.choice(kept)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randint(0, len(data))
        data[at : at + random.choice((0, 1, 4))] = random.randbytes(random.choice((0, 1, 1, 3)))
    return bytes(data[:LONGEST])


def _run(watched: Watched, seed: int, new: Path, kept: Path) -> None:
    """Fuzz one decoder in this process until the process ends."""
    inputs = [path.read_bytes() for path in sorted(kept.glob("*"))]
    if not LED:
        inputs += [path.read_bytes() for path in sorted(new.glob("*"))]
        random = Random(seed)
        for data in inputs:
            watched(data)
        while True:
            watched(_random_input(random, inputs))
    words = [f"-seed={seed}", f"-artifact_prefix={new}/", f"-max_len={LONGEST}"]
    atheris.Setup([sys.argv[0], str(new), *[str(kept)] * bool(inputs), *words, "-verbosity=0"], watched)
    atheris.Fuzz()


def main(file: str, decoders: Mapping[str, Decoder]) -> int:
    """Run a fuzzer as a program, each decoder in a process of its own; return the exit status."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("executions", type=int, nargs="?", default=20_000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end each decoder after S seconds at the latest"
    )
    parser.add_argument("--decoder", action="append", choices=decoders)
    parser.add_argument("--unled", action="store_true", help="without coverage: more executions in the same time")
    parser.add_argument("--corpus", type=Path, help="where to keep inputs that reach new code; nowhere by default")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    fuzzer = Path(file).stem.removeprefix("fuzz_")
    for name in words.decoder or decoders:
        kept = CORPUS / f"{fuzzer}-{name}"
        if words.here:
            watched = Watched(f"{fuzzer} {name}", decoders[name], words.executions, words.seconds)
            _run(watched, words.seed, words.corpus, kept)
        with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as temporary:
            new = (words.corpus or Path(temporary)) / kept.name
            new.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, file, str(words.executions), str(words.seed), "--decoder", name]
            command += ["--seconds", str(words.seconds), "--here", "--corpus", str(new)]
            command += ["--unled"] * words.unled
            status = subprocess.run(command, env={**os.environ, "TMPDIR": temporary}, check=False).returncode
        if status:
            print(f"{fuzzer} {name}: failed with {status}", file=sys.stderr)
            return 1
    return 0
