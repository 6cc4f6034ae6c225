"""A journal that a server's own code writes, and one Spark session for all tests."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.offline.places import Directory
from fyrehose.records import Record, Run
from fyrehose.spark.columns import COLUMNS, arrow_schema
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from tests.doubles.appending import append_runs
from tests.doubles.killed import close_files
from tests.doubles.opened_journal import Observer


@attrs.define(eq=False)
class Written:
    """A journal that is being written, and every record that was."""

    directory: Path
    journal: FileJournal
    next: dict[str, int]
    now: list[int]
    records: list[Record] = attrs.field(factory=list)
    crashed: bool = False

    def append(self, *runs: Run) -> None:
        """One group commit, a second after the last."""
        self.now[0] += 1_000_000
        firsts = []
        for run in runs:
            firsts.append(self.next.get(run.stream, 1))
            self.next[run.stream] = firsts[-1] + len(run)
            self.records += run.numbered(firsts[-1], self.now[0]).records()
        append_runs(self.journal, list(runs), firsts)

    def fill(self, count: int, streams: int = 3, size: int = 2000) -> None:
        """``count`` batches of a few records of several streams."""
        for i in range(count):
            stream = f"s{i % streams}"
            payloads = [b"%d %d " % (i, k) + bytes(size) for k in range(i % 4 + 1)]
            self.append(Run.of(stream, payloads, source="test", producer=f"p{i % 2}", producer_seq=i * 10))

    def close(self) -> None:
        if not self.crashed:
            self.journal.close()

    def crash(self) -> None:
        """Stop as if the process had been killed: nothing more is written, and the lock is released."""
        self.crashed = True
        close_files(self.directory)

    @property
    def place(self) -> Directory:
        return Directory(self.directory)

    @property
    def segments(self) -> list[scan.Segment]:
        return scan.segments(self.directory)

    def read(
        self,
        selection: Selection | None = None,
        columns: tuple[str, ...] = tuple(COLUMNS),
        skip_gaps: bool = False,
        piece: int = 1 << 16,
        start: int | None = None,
        stop: int | None = None,
    ) -> list[dict[str, Any]]:
        """Everything that is planned, read."""
        chosen = selection or Selection()
        rows: list[dict[str, Any]] = []
        for part in Planner(self.place, chosen, piece, skip_gaps).parts(start, stop):
            for batch in PartReader(self.place, part, chosen, arrow_schema(columns), skip_gaps).read():
                rows += batch.to_pylist()
        return rows

    def rows(self, where: Callable[[Record], bool] = lambda record: True) -> list[tuple[str, int, bytes]]:
        """Return what was written, in the order of streams."""
        return sorted((r.stream, r.seq, r.payload) for r in self.records if where(r))

    def faults(self, found: Iterable[tuple[str, int, bytes]]) -> list[str]:
        """Return the records that *found* lacks, has too often, or has changed, by stream and number."""
        wanted, others = Counter(self.rows()), Counter(found)
        return [
            f"{stream} {seq} {fault}"
            for fault, rows in (("is missing", wanted - others), ("is there too often or changed", others - wanted))
            for stream, seq, _ in sorted(rows.elements())
        ]

    def brief(self, rows: list[dict[str, Any]]) -> list[tuple[str, int, bytes]]:
        """Return what was read, as :meth:`rows` has it."""
        return sorted((row["stream"], row["seq"], row["payload"]) for row in rows)

    def flip(self, position: int) -> Path:
        """Damage a byte at a position; the file that has it."""
        segment = next(s for s in reversed(self.segments) if s.base <= position)
        with segment.path.open("r+b") as file:
            file.seek(position - segment.base)
            byte = file.read(1)
            file.seek(position - segment.base)
            file.write(bytes([byte[0] ^ 0x10]))
        return segment.path


@contextmanager
def serving(directory: Path, protocol: str) -> Iterator[tuple[str, Path]]:
    """Run a real server in a process of its own; yields where the listener of a protocol is, and its journal."""
    journal, log = directory / "data", directory / "log"
    command = [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile", "", "--logfile", str(log), "fyrehose"]
    command += ["--data-dir", str(journal), "--listen", f"{protocol}=tcp:0:interface=127.0.0.1"]
    process = subprocess.Popen([*command, "--option", "journal.min-free=1M"], cwd=directory)
    listens = rf"{protocol} \(\S+\) listens on (\S+:\d+)"
    deadline = time.monotonic() + 60
    while not (found := re.findall(listens, log.read_text() if log.exists() else "")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield found[0], journal
    process.terminate()
    process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real server: where its Figg listener is, and its journal."""
    with serving(tmp_path, "figg") as served:
        yield served


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real server: the URL of its HTTP listener, and its journal."""
    with serving(tmp_path, "http") as (where, journal):
        yield f"http://{where}", journal


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """Where the object store of the tests will be; the environment directs delta-rs there, also in Spark's workers."""
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patched:
        # Bound to the end of the session, so that no other test gets the port before the store listens there.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        patched.setenv("AWS_ENDPOINT_URL", url)
        patched.setenv("AWS_ALLOW_HTTP", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            patched.setenv(name, "tests")
        yield url


@pytest.fixture(scope="session")
def object_store(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server in a process of its own; returns its URL."""
    log = tmp_path_factory.mktemp("moto") / "log"
    program, port = Path(__file__).parents[1] / "doubles" / "objectstore.py", store_url.rpartition(":")[2]
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, str(program), port], stderr=file)
    deadline = time.monotonic() + 120
    while f"Running on {store_url}" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield store_url
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="session")
def spark(store_url: str) -> Iterator[Any]:
    """One session for all tests: it takes seconds to start."""
    from fyrehose.spark import session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": "/nonexistent"}
    started = session("tests", "local[2]", memory="1g", quick=True, conf=conf)
    yield started
    started.stop()


@pytest.fixture
def bucket(object_store: str) -> str:
    """Return the URL of a new bucket: ``s3://NAME``."""
    name = f"lake-{uuid.uuid4().hex}"
    put(f"{object_store}/{name}")
    return f"s3://{name}"


def put(url: str, data: bytes = b"", **headers: str) -> None:
    """Create a bucket or an object of the S3 server, which does not check signatures."""
    request = Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()}, method="PUT")
    request.add_header("Content-Type", "application/octet-stream")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request")
    with urlopen(request, timeout=60) as response:
        assert response.status == 200


@pytest.fixture
def put_object(object_store: str) -> Callable[..., None]:
    """Stores an object, by its ``s3://`` URL; keywords become headers of the request."""
    return lambda url, data, **headers: put(f"{object_store}/{url.removeprefix('s3://')}", data, **headers)


Opener = Callable[..., Written]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Opener]:
    """Opens a journal of this test; again, if need be."""
    opened: list[Written] = []

    def open_it(name: str = "j", **settings: Any) -> Written:
        now = [1_700_000_000_000_000]
        chosen = {"min_free": 0, "segment_size": 256 << 10} | settings
        journal = FileJournal(
            Clock(),
            tmp_path / name,
            JournalSettings(**chosen),
            clock=RecordClock(lambda: now[0]),
            worker=InlineWorker(),
        )
        ends: list[Any] = []
        journal.open(Observer()).addBoth(ends.append)
        assert isinstance(ends[0], Mapping), ends[0]
        opened.append(Written(tmp_path / name, journal, {s: end + 1 for s, end in ends[0].items()}, now))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Restore the handlers of signals after a test, because commands that follow a journal install their own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
