"""Random bytes for lumberjack: the reader's session, the writer's, single frames, and the kernels against their twins.

    python tests/fuzz/fuzz_lumberjack.py [EXECUTIONS [SEED]] [--decoder NAME ...]

Each decoder has a process of its own and EXECUTIONS inputs.  With atheris (the extra ``fuzz``) they are led by
coverage; without it they are valid ones, cut, joined and overwritten.  It ends with an error at the first crash,
execution that takes more than a second, or growth of more than 64 MiB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

INSTRUMENTED = ["fyrehose.protocols.lumberjack", "fyrehose.kernels.pure"]
with atheris.instrument_imports(include=INSTRUMENTED) if atheris else nullcontext():
    from fyrehose.errors import Broken, RemoteProtocolError
    from fyrehose.kernels import NATIVE
    from fyrehose.kernels import lumberjack as kernel
    from fyrehose.kernels.pure import lumberjack as pure
    from fyrehose.protocols.lumberjack import frames
    from fyrehose.protocols.lumberjack.client_session import LumberjackWriterSession
    from fyrehose.protocols.lumberjack.inflate import InflateLimits
    from fyrehose.protocols.lumberjack.session import Limits, LumberjackServerSession
    from fyrehose.records import Run

#: How long one execution may take, in seconds, and how much the process may grow, in KiB.
SLOWEST = 1.0
GROWTH = 64 << 10
#: What the inputs of the reader's session have around what is to be compressed: byte noise makes no zlib streams.
FENCE = b"|C|"

SEEDS = [
    b"2W\0\0\0\2" + frames.Json(sequence=1, payload=b"{}").serialize() * 2,
    b"1W\0\0\0\1" + frames.Data(version=1, sequence=7, pairs=((b"k", b"v"), (b"k", b"\xff"))).serialize(),
    b"2W\0\0\0\3" + FENCE + frames.Json(sequence=9, payload=b'{"@metadata":{"beat":"x"}}').serialize() * 3 + FENCE,
    b"2W\0\0\0\0" + FENCE + FENCE + b"2C\0\0\0\4abcd",
    b"2J\xff\xff\xff\xff\0\0\0\0" + b"1J\0\0\0\0\0\0\0\3[1]",
    b"2A\0\0\0\1" * 2 + b"1A\0\0\0\0",
    b'{"@metadata" : {"beat":"\\u00fc","a":[1,{"b":"}"}]},"x":-1.5e3}',
]


def session_of(limits: Limits, chunks: list[bytes]) -> tuple[list[tuple[bytes, int, str | None, str]], str | None]:
    """The events that a session makes of ``chunks``, one by one, and what broke it."""
    session, events, cause, turns = LumberjackServerSession(limits), [], None, 0
    total = sum(map(len, chunks))
    made: list[Any] = []

    def take(found: list[Any]) -> None:
        made.extend(found)
        session.durable(sum(len(event) for event in found if not isinstance(event, Broken)))
        session.data_to_send()

    for chunk in chunks:
        take(session.receive_data(chunk))
        while session.more_work:
            turns += 1
            assert turns < 100_000, "it does not end"
            take(session.go_on(session.needs))
            assert session.held <= 2 * total + limits.inflate.largest + (256 << 10)
        assert session.expected <= 2 * limits.max_frame
    for event in made:
        assert cause is None, "Broken is the last"
        if isinstance(event, Broken):
            cause = event.error.cause
            continue
        run = Run(
            stream="s",
            source="x",
            lengths=event.lengths,
            payload=event.payload,
            producer_seq=event.producer_seq,
        )
        assert sum(run.sizes) == len(run.payload)
        seqs = run.producer_seqs() or ()
        for payload, seq in zip(run.payloads(), seqs, strict=True):
            events.append((bytes(payload), seq, event.topic, event.content_type))
    return events, cause


def reader(data: bytes) -> None:
    """The reader's session: whole, and in chunks and turns of other sizes."""
    size, events, data = (data[0] or 1, (data[1] & 15) + 1, data[2:]) if len(data) > 1 else (1, 1, data)
    stream = b""
    for number, part in enumerate(data.split(FENCE)):
        if number % 2:
            packed = zlib.compress(part, 1)
            part = b"2C" + len(packed).to_bytes(4, "big") + packed
        stream += part
    inflate = InflateLimits(largest=1 << 20)
    wanted = session_of(Limits(inflate=inflate), [stream])
    size = max(size, len(stream) // 50)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    found = session_of(Limits(inflate=inflate, turn_events=events, turn_bytes=64 * events), chunks)
    assert found == wanted, (found, wanted)


def writer(data: bytes) -> None:
    """The writer's session, with windows under way."""
    for size in (len(data) or 1, 1, 5):
        session = LumberjackWriterSession(2, 0)
        for count in (1, 3, 200):
            session.send_window((1).to_bytes(4, "little") * count, b"x" * count)
        acknowledged = 0
        for at in range(0, len(data), size):
            events = session.receive_data(data[at : at + size])
            assert not any(isinstance(event, Broken) for event in events[:-1])
            acknowledged += sum(getattr(event, "count", 0) for event in events)
        assert acknowledged <= 204


def single(data: bytes) -> None:
    """Every frame's own parser: what it takes it also makes, D frames wherever they are cut."""
    for frame in frames.FRAMES.values():
        try:
            parsed = frame.parse(data)
        except RemoteProtocolError:
            continue
        assert parsed.serialize() == data
    for final in (False, True):
        fields = frames.Fields()
        try:
            for end in range(0, len(data) + 1, 3):
                fields.advance(data, 0, end, final=final and end == len(data))
        except RemoteProtocolError:
            pass
    frames.to_json(((data[:5], data[5:]), (data, data)))


def kernels(data: bytes) -> None:
    """The kernels in use, and their twins."""
    assert NATIVE, "the native kernels are not built"
    most, data = (data[0], data[1:]) if data else (0, data)
    for version in b"12":
        wanted = pure.scan(data, 0, version, most << 2, most << 3, most)
        assert kernel.scan(data, 0, version, most << 2, most << 3, most) == wanted
    for path in ((b"@metadata", b"beat"), (b"a",), ()):
        assert kernel.find(data, path) == pure.find(data, path)
        cut = min(most, len(data))
        lengths = cut.to_bytes(4, "little") + (len(data) - cut).to_bytes(4, "little")
        assert kernel.split(lengths, data, path, most) == pure.split(lengths, data, path, most)


DECODERS: dict[str, Callable[[bytes], None]] = {
    "reader": reader,
    "writer": writer,
    "single": single,
    "kernels": kernels,
}


def resident() -> int:
    """The most memory that the process ever had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Watched:
    """A decoder that is looked at: how long it takes, how much the process grows."""

    def __init__(self, decoder: Callable[[bytes], None], executions: int) -> None:
        self.decoder = decoder
        self.executions = executions
        self.done = 0
        self.slowest = 0.0
        self.before = 0

    def __call__(self, data: bytes) -> None:
        began = time.process_time()
        self.decoder(data)
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        assert took < SLOWEST, f"{took:.2f} s"
        self.done += 1
        if self.done == min(1_000, self.executions // 2 + 1):
            self.before = resident()
        if self.done % 100_000 == 0:
            print(f"{self.decoder.__name__}: {self.done:,}", flush=True)
        if self.done == self.executions:
            grown = resident() - self.before
            print(
                f"{self.decoder.__name__}: {self.done:,} executions, slowest {self.slowest * 1000:.1f} ms, "
                f"grown by {grown >> 10} MiB",
                flush=True,
            )
            assert grown < GROWTH, f"grown by {grown >> 10} MiB"


def mutated(random: Random) -> bytes:
    """A valid input, or several, with something done to it."""
    data = bytearray(b"".join(random.choices(SEEDS, k=random.randint(1, 3))))
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        at = random.randint(0, len(data))
        how = random.randrange(4)
        if how == 0:
            data[at:at] = random.randbytes(random.choice([1, 2, 4]))
        elif how == 1:
            del data[at : at + random.choice([1, 2, 8])]
        elif how == 2 and at < len(data):
            data[at] = random.randrange(256)
        else:
            data[at:at] = random.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", FENCE, b"2J", b"1D", b"2W\0\0\0\1"])
    return random.randbytes(2) + bytes(data)


def run(name: str, executions: int, seed: int, corpus: Path) -> None:
    """Fuzz one decoder, in this process; with atheris that ends it."""
    watched = Watched(DECODERS[name], executions)
    if atheris is None:
        random = Random(seed)
        for _ in range(executions):
            watched(mutated(random))
        return
    for number, data in enumerate(SEEDS):
        corpus.joinpath(str(number)).write_bytes(b"\7\3" + data)
    words = [f"-runs={executions}", f"-seed={seed}", f"-artifact_prefix={corpus}/", "-max_len=512", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), *words], watched)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("executions", type=int, nargs="?", default=20_000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--decoder", action="append", choices=DECODERS)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.here:
        run(words.decoder[0], words.executions, words.seed, words.here)
        return 0
    numbers = [str(words.executions), str(words.seed)]
    for name in words.decoder or DECODERS:
        with TemporaryDirectory() as corpus:
            command = [sys.executable, __file__, *numbers, "--decoder", name, "--here", corpus]
            status = subprocess.run(command, check=False).returncode
        if status:
            print(f"{name}: failed with {status}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
