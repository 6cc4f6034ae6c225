#!/usr/bin/env python3
"""Kill ``fyrehose forward``, its destination and its server at random times: no record may be lost.

    forward_kill.py [--kills N] [--seed S] [--only DESTINATION] [--directory DIR] [--sabotage]

Records are published all the time, each with a number.  In each round one of the three processes is killed and started
again.  In the end ``fyrehose forward --once`` must deliver the rest, and the destination must have every number: once,
where docs/forward.md says that a repetition is recognized.  Servers of Fyrehose are the destinations of lumberjack,
RELP, syslog, ``http://`` and ``fyrehose://``, also with TLS; a double that keeps identities and cuts every tenth answer
stands in for Elasticsearch; the brokers of Kafka are librdkafka's own, in a process that is not killed.  Nor is the
destination of syslog, because TCP acknowledges nothing.  With --sabotage the position is moved over
records that are not delivered, which must be noticed.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import kills
import servers

from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_port

#: The streams that destinations have, the listeners of these, and whether each record must be there only once.
STREAMS = {"fyrehose": "copy", "http": "copy", "lumberjack": "lumberjack", "relp": "syslog", "syslog": "syslog"}
LISTENERS = {"fyrehose": "http", "http": "http", "lumberjack": "lumberjack", "relp": "syslog", "syslog": "syslog"}
ONCE = ("fyrehose", "fyrehoses", "elasticsearch")
ENCRYPTED = {f"{name}s": name for name in STREAMS}
DESTINATIONS = (*STREAMS, *ENCRYPTED, "elasticsearch", "kafka")
#: How long anything may take, in seconds.
PATIENCE = 120.0
#: A process with the mock brokers, which prints their addresses.
BROKERS = (
    "from confluent_kafka import Producer; p = Producer({'bootstrap.servers': 'x:1', 'test.mock.num.brokers': '1'}); "
    "print(','.join(str(b).partition('/')[0] for b in p.list_topics().brokers.values()), flush=True); input()"
)


class Search(BaseHTTPRequestHandler):
    """A double of ``_bulk`` that stores each identity once, and cuts the connection in place of some answers."""

    protocol_version = "HTTP/1.1"
    documents: ClassVar[dict[str, int]] = {}
    random = random.Random(0)
    cuts = 0

    def do_POST(self) -> None:
        lines = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))).split(b"\n")
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=False):
            name = json.loads(action)["create"]["_id"]
            items.append({"create": {"status": 409 if name in self.documents else 201}})
            self.documents[name] = json.loads(document)["n"]
        if self.random.random() < 0.1:
            Search.cuts += 1
            self.close_connection = True
            return
        errors = any(each["create"]["status"] != 201 for each in items)
        answer = json.dumps({"errors": errors, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server that says nothing about clients that are killed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Publisher(threading.Thread):
    """Publishes numbers with keys, so that each is in the stream once, also if the server is killed."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port, self.sent, self.stopping = port, 0, False

    def run(self) -> None:
        while not self.stopping:
            lines = "\n".join(json.dumps({"n": number}) for number in range(self.sent, self.sent + 100))
            with contextlib.suppress(*kills.LOST):
                kind, key = "application/x-ndjson", f"k{self.sent}"
                status, _ = kills.ask(
                    self.port, "POST", "/streams/in", lines.encode(), Content_Type=kind, Idempotency_Key=key
                )
                self.sent += 100 if status == 200 else 0
            time.sleep(0.02)


def numbers_of_server(port: int, stream: str) -> list[int]:
    """Return the numbers in a stream of a server of Fyrehose."""
    _, said = kills.ask(port, "GET", f"/streams/{stream}?limit=1000000")
    payloads = [json.loads(line)["payload"] for line in said.splitlines()]
    return [json.loads(payload[payload.index("{") :])["n"] for payload in payloads]


class Reader(threading.Thread):
    """Reads the topic of the mock brokers all the time, because they keep 5 MiB of a partition only.

    :ivar quiet: for how many seconds nothing has come
    """

    def __init__(self, brokers: str) -> None:
        super().__init__(daemon=True)
        self.brokers, self.quiet = brokers, 0
        self.found: list[int] = []

    def run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.brokers, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["in"])
        while True:
            message = consumer.poll(1.0)
            self.quiet = 0 if message is not None else self.quiet + 1
            if message is not None and message.error() is None:
                self.found.append(json.loads(message.value())["n"])

    def numbers(self) -> list[int]:
        """Return the numbers that have come, when no more come."""
        while self.quiet < 10:
            time.sleep(1.0)
        return self.found


def skip(port: int) -> None:
    """Move the position of the subscription to the end of the stream."""
    assert kills.ask(port, "POST", "/subscriptions/f/rewind", b'{"seq": "latest"}')[0] == 200


def torture(name: str, times: int, seed: int, directory: Path, sabotage: bool) -> bool:
    """Run one destination; return whether it has what it must have."""
    draw = random.Random(f"{seed}:{name}")
    directory.mkdir(parents=True)
    http, there, central = free_port(), free_port(), free_port()
    started: list[kills.Program] = []
    loopback = "interface=127.0.0.1"
    serve = [kills.FYREHOSE, "serve", "--data-dir"]
    programs = [
        kills.Program(
            "server", [*serve, directory / "a", "--listen", f"http=tcp:{http}:{loopback}"], directory / "a.log"
        )
    ]
    brokers = subprocess.Popen(
        [sys.executable, "-c", BROKERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    search = Server(("127.0.0.1", 0), Search)
    threading.Thread(target=search.serve_forever, daemon=True).start()
    assert brokers.stdout is not None
    address = brokers.stdout.readline().strip()
    plain = ENCRYPTED.get(name, name)
    to = f"{name}://localhost:{there}{'/streams/copy' if plain == 'http' else ''}"
    own = 'stream = "copy"\n' if plain == "fyrehose" else ""
    if plain in STREAMS:
        listener = f"{LISTENERS[plain]}/to"
        listen = [f"http=tcp:{central}:{loopback}", f"{listener}=tcp:{there}:{loopback}"]
        words = [*serve, directory / "b", *(word for each in listen for word in ("--listen", each))]
        if name in ENCRYPTED:
            authority = Authority(directory)
            issued = authority.issue("server", "localhost")
            own += f'tls = "{authority.certificate}"\n'
            words += ["--option", f"{listener}.tls-certificate={issued.certificate}"]
            words += ["--option", f"{listener}.tls-key={issued.key}"]
        started.append(kills.Program("destination", words, directory / "b.log"))
        programs += [] if plain == "syslog" else started
    elif name == "elasticsearch":
        to = f"elasticsearch+http://127.0.0.1:{search.server_port}"
    else:
        to = f"kafka://{address}"
    reader = Reader(address)
    if name == "kafka":
        reader.start()
    config = directory / "forward.toml"
    config.write_text(
        f'[[forward]]\nname = "f"\nfrom = "127.0.0.1:{http}"\nstreams = "in"\nto = "{to}"\nlinger = "5ms"\n'
        f'batch-count = 150\nlongest-pause = "0.5s"\ntimeout = "5s"\n{own}\n'
    )
    forward = kills.Program("forward", [kills.FYREHOSE, "forward", config], directory / "forward.log")
    programs += [forward, forward]  # it is killed twice as often as each of the others
    publisher = Publisher(http)
    publisher.start()
    kills.wait_for("records are published", lambda: publisher.sent > 0)
    kills.wait_for("the forwarder subscribes", lambda: kills.ask(http, "GET", "/subscriptions/f")[0] == 200)
    killed = kills.kill_some(programs, times, draw, (0.1, 2.0))
    before = publisher.sent
    kills.wait_for("records are published after the last kill", lambda: publisher.sent > before)
    if sabotage:
        forward.kill()
        time.sleep(2.0)
    publisher.stopping = True
    publisher.join()
    forward.kill()
    if sabotage:
        skip(http)
    deadline, once = time.monotonic() + PATIENCE, [kills.FYREHOSE, "forward", config, "--once"]
    while subprocess.run(once, timeout=600, stderr=subprocess.DEVNULL).returncode and time.monotonic() < deadline:
        pass  # the servers may be starting
    found = (
        list(Search.documents.values())
        if name == "elasticsearch"
        else reader.numbers()
        if name == "kafka"
        else numbers_of_server(central, STREAMS[plain])
    )
    for program in {*programs, *started}:
        program.kill()
    search.shutdown()
    brokers.kill()
    lost = set(range(publisher.sent)) - set(found)
    doubled = len(found) - len(set(found))
    ordered = found == sorted(found) or plain != "fyrehose"
    print(
        f"{name}: {publisher.sent} records, kills: {kills.shown(killed)}; {len(lost)} lost, {doubled} doubled",
        flush=True,
    )
    return not lost and ordered and (not doubled or name not in ONCE)


def main() -> int:
    parser = kills.parser_of(__doc__, kills=20)
    parser.add_argument("--only", choices=DESTINATIONS, action="append")
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    root, chosen = kills.root_of(options, "forward-kill"), options.only or DESTINATIONS
    results = [torture(name, options.kills, options.seed, root / name, options.sabotage) for name in chosen]
    return servers.verdict(not all(results), root)


if __name__ == "__main__":
    sys.exit(main())
