"""Fuzz the decoders of the fuzzers, each in a process of its own, and watch time and memory.

    python tests/verification/fuzz/fuzz.py [FUZZER ...] [--executions N] [--seed S] [--decoder NAME ...] [--seconds S]
        [--corpus DIR] [--unled]

With atheris (the extra ``fuzz``), coverage guides the inputs, which begin with those kept in
``tests/verification/fuzz/corpus/FUZZER-DECODER``.  Without atheris, or with --unled, inputs are random bytes and kept
inputs that are joined and overwritten; without instrumentation two or three times as many run in the same time.  With
--corpus, new inputs that reach new code are written to DIR/FUZZER-DECODER, and --unled reads them from there.  The
program ends with an error and the input in hexadecimal at the first crash, at an execution of more than a second, or
when a process has grown by more than 64 MiB, or temporarily by 256 MiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[3]))

from harness import LED, atheris

Decoder = Callable[[bytes], None]

#: The limits of one execution in seconds, and of the growth of the process in KiB: lasting (GROWTH) and temporary
#: (NEED); a message of 16 MiB is copied several times while it is made and read.
SLOWEST = 1.0
GROWTH = 64 << 10
NEED = 256 << 10
#: The longest input, in bytes.
LONGEST = 512
CORPUS = Path(__file__).with_name("corpus")
FUZZERS = sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.py"))


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


def random_input(random: Random, kept: Sequence[bytes]) -> bytes:
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
            watched(random_input(random, inputs))
    words = [f"-seed={seed}", f"-artifact_prefix={new}/", f"-max_len={LONGEST}"]
    atheris.Setup([sys.argv[0], str(new), *[str(kept)] * bool(inputs), *words, "-verbosity=0"], watched)
    atheris.Fuzz()


def decoders_of(fuzzer: str) -> dict[str, Decoder]:
    """Return the decoders of *fuzzer*, by their names."""
    return dict(import_module(f"fuzz_{fuzzer}").DECODERS)


def main() -> int:
    """Run the program; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=f"{', '.join(FUZZERS)}; by default all")
    parser.add_argument("--executions", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end each decoder after S seconds at the latest"
    )
    parser.add_argument("--decoder", action="append", help="only the decoders of this name")
    parser.add_argument("--unled", action="store_true", help="without coverage: more executions in the same time")
    parser.add_argument("--corpus", type=Path, help="where to keep inputs that reach new code; nowhere by default")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    found = [(fuzzer, name) for fuzzer in words.fuzzers or FUZZERS for name in decoders_of(fuzzer)]
    chosen = [each for each in found if each[1] in (words.decoder or [each[1]])]
    if not chosen:
        parser.error(f"no such decoder; there are {', '.join(name for _, name in found)}")
    for fuzzer, name in chosen:
        kept = CORPUS / f"{fuzzer}-{name}"
        if words.here:
            watched = Watched(f"{fuzzer} {name}", decoders_of(fuzzer)[name], words.executions, words.seconds)
            _run(watched, words.seed, words.corpus, kept)
        with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as temporary:
            new = (words.corpus or Path(temporary)) / kept.name
            new.mkdir(parents=True, exist_ok=True)
            numbers = {"executions": words.executions, "seed": words.seed, "seconds": words.seconds}
            command = [sys.executable, __file__, fuzzer, "--decoder", name, "--here", "--corpus", str(new)]
            command += [f"--{option}={value}" for option, value in numbers.items()] + ["--unled"] * words.unled
            status = subprocess.run(command, env={**os.environ, "TMPDIR": temporary}, check=False).returncode
        if status:
            print(f"{fuzzer} {name}: failed with {status}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
