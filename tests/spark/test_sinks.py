"""The recipes of docs/pipelines.md for other systems, run as the page has them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fyrehose.offline.places import Directory
from fyrehose.records import Run
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from fyrehose.testing.ports import free_port

Opener = Callable[..., Any]
PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def snippet(words: str) -> str:
    """Return the Python program of the page that contains *words*."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if words in block]
    return str(found)


def run(program: str, **replaced: str) -> None:
    for old, new in replaced.items():
        assert f'"{old}"' in program
        program = program.replace(f'"{old}"', f'"{new}"')
    # Functions of __main__ are sent to Spark's workers with their code.
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a PostgreSQL server with a database ``events``, to which psycopg connects by default."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    where = os.pathsep.join([*map(str, reversed(debian)), os.environ["PATH"]])
    initdb, server = shutil.which("initdb", path=where), shutil.which("postgres", path=where)
    if initdb is None or server is None:
        pytest.skip("a server of others is not installed: PostgreSQL (apt-get install postgresql)")
    directory = Path(tempfile.mkdtemp(prefix="fyrehose-postgres-"))
    # PostgreSQL refuses to run as root.
    user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
    if user:
        shutil.chown(directory, **user)
    port = free_port()
    quiet: dict[str, Any] = {"cwd": directory, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
    words = ["-D", str(directory / "data"), "--auth=trust", "--username=events", "--encoding=UTF8", "--no-sync"]
    subprocess.run([initdb, *words], check=True, **quiet)
    options = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={directory}", "fsync=off"]
    command = [server, "-D", str(directory / "data"), *(word for option in options for word in ("-c", option))]
    process = subprocess.Popen(command, **quiet)
    try:
        for name, value in {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "events"}.items():
            monkeypatch.setenv(name, value)
        create_database(process)
        yield
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(directory)


def create_database(process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 120
    while True:
        try:
            with psycopg.connect("dbname=postgres", autocommit=True) as database:
                database.execute("create database events")
            return
        except psycopg.OperationalError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_records_are_in_postgresql_once_however_often_they_are_written(
    spark: Any, written: Opener, postgres: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    journal = written()
    journal.append(Run.of("web", [b"a", b"\x00\xff", b""], source="test"), Run.of("log", [b"b"], source="test"))
    program, state = snippet("import psycopg"), tmp_path / "state"

    def store() -> list[tuple[Any, ...]]:
        # Workers that were started before do not have this test's environment.
        where = " ".join(f"{key}={os.environ[name]}" for key, name in PLACES.items())
        run(program, data=str(journal.directory), **{"dbname=events": f"dbname=events {where}"}, state=str(state))
        with psycopg.connect("dbname=events") as database:
            rows = "select stream, seq, extract(epoch from time) * 1000000, payload from events order by 1, 2"
            return [(*row[:2], int(row[2]), bytes(row[3])) for row in database.execute(rows)]

    expected = sorted((r.stream, r.seq, r.time, r.payload) for r in journal.records)
    assert store() == expected
    journal.append(Run.of("web", [b"c"], source="test"))
    expected = sorted((r.stream, r.seq, r.time, r.payload) for r in journal.records)
    assert store() == expected
    # As after a crash between PostgreSQL's commit and that of the query.
    shutil.rmtree(state)
    assert store() == expected


PLACES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER"}


class Index(ThreadingHTTPServer):
    """A server that keeps documents by their ids, as Elasticsearch does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Bulk)
        self.documents: dict[str, Any] = {}
        self.requests = 0
        self.refuse: set[str] = set()


class Bulk(BaseHTTPRequestHandler):
    server: Index

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/_bulk"
        assert self.headers["Content-Type"] == "application/x-ndjson"
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.splitlines()]
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            key = action["index"]["_id"]
            refused = key in self.server.refuse
            if not refused:
                self.server.documents[key] = document
            items.append({"index": {"_id": key, "status": 400 if refused else 201}})
        self.server.requests += 1
        answer = json.dumps({"errors": bool(self.server.refuse), "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def index() -> Iterator[Index]:
    server = Index()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_documents_are_indexed_once_however_often_they_are_sent(
    spark: Any, written: Opener, index: Index, tmp_path: Path
) -> None:
    journal = written()
    journal.append(Run.of("web", [b'{"ms":%d}' % n for n in range(1500)] + [b"no JSON"], source="test"))
    program = snippet("_bulk")
    where = f"http://127.0.0.1:{index.server_address[1]}/_bulk"
    replaced = {"data": str(journal.directory), "http://127.0.0.1:9200/_bulk": where}
    for _ in range(2):
        run(program, **replaced)
        assert len(index.documents) == 1501
    assert index.requests >= 4
    assert index.documents["web-2"]["ms"] == 1
    assert index.documents["web-1501"]["message"] == "no JSON"
    index.refuse = {"web-7"}
    with pytest.raises(Exception, match=r"refused 1 of .* documents.*web-7"):
        run(program, **replaced)


def test_results_are_published_into_a_stream(spark: Any, written: Opener, server: tuple[str, Path]) -> None:
    journal, (where, data) = written(), server
    journal.append(Run.of("web", [b"a", b"b"], source="test"), Run.of("log", [b"c"], source="test"))
    run(snippet('stream="rates"'), **{"data": str(journal.directory), "127.0.0.1:8119": where})
    place, everything, schema = Directory(data), Selection(), arrow_schema(("stream", "payload"))
    found = [
        row["payload"]
        for part in Planner(place).parts()
        for batch in PartReader(place, part, everything, schema).read()
        for row in batch.to_pylist()
        if row["stream"] == "rates"
    ]
    assert sorted(found) == [b'{"stream":"log","count":1}', b'{"stream":"web","count":2}']
