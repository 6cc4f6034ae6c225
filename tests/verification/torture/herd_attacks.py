"""The attacks of one hostile host for herd.py, each in a process of its own, by raw sockets.

    nothing        no attack, to measure how long honest clients wait on this machine anyway
    trickle        200 connections announce a message of 16 MiB each, and send 8 KiB of it each second
    streams        publishes to new streams, with names of 255 bytes, as fast as they are accepted
    subscriptions  300 connections with 1,000 subscriptions each
    silent         connections that never send anything, 4,200 to each listener, from 40 addresses
    keepalives     1,100 subscribers of the backbone
    requests       a REQUEST for everything every 120 ms without a KEEPALIVE: the answers may be three times as large
    gaps           40 clients of the backbone that REQUEST every other record singly, 20,000 times a second together
    deaf-subs      subscribers of the event bus that never read, with events of 1 MiB
    deaf-dealers   clients of the event bus that request everything and never read it
    deaf-readers   250 subscribers by HTTP, Figg and Relink that never read records of 16 MiB (96 MiB in JSON), nor
                   those of 256 KiB that come all the time
    refusals       connections whose data is refused, and that reconnect at once
    patterns       named subscriptions with patterns, lists by slow patterns, and streams that almost match them
    bombs          a large compressed lumberjack frame that is refused near its end, again and again
    handshakes     TLS handshakes without the required client certificate, repeated at once when they fail
    keys           publishes with a new idempotency key each, while a client of another address repeats its own
    uploads        60 connections that POST 4 MB each, again and again
    records        32 TLS connections whose records have one byte each
    flood          500 connections a second are opened and dropped, 900 at a time, from one address after another
    slow           900 connections of Figg, lumberjack and Relink send a byte of a frame every second
    heavy          200 clients at four addresses send 16 MiB each at once
    inflation      lumberjack windows that inflate to hundreds of times their size, beyond every limit
    datagrams      10,000 datagrams of four kinds a second to the backbone

An attack returns what it did, and what it could do although the server should prevent it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import select
import selectors
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from typing import Any

import wire
from load import Worker

PATIENCE = 60.0
Said = tuple[str, list[str]]
Stopped = Callable[[float], bool]
#: The addresses that fill streams for an attack, and that read them; honest clients use neither.
WRITER, STRANGER = "127.0.0.3", "127.0.0.4"
#: How many events of 1 MiB are written at most, and how often a refused peer may reconnect in a second.
MOST_EVENTS, MOST_RETURNS = 500, 10
#: Options of the server without which an attack has no effect in its time.
OPTIONS = {"keys": ["server.memory=64MiB"]}
#: The listener that uses TLS and requires client certificates.
SECURED = "figg/secured"
#: The listener that uses TLS without client certificates.
TLS = "figg/tls"


class Attack(Worker):
    """A process that attacks until :meth:`end` is called; ``plan``: the attack, the ports, and its address."""

    def _run(self, pipe: Connection, *plan: Any) -> None:
        name, ports, address = plan
        pipe.send(ATTACKS[name](ports, address, pipe.poll))

    def end(self) -> Said:
        """Stop the attack; return what it did, and what should not have been possible."""
        try:
            found: Said = self.ask("enough")
        except (EOFError, BrokenPipeError):
            return "it failed", ["the attack failed, see above"]
        finally:
            self.close()
        return found


def connect(port: int, address: str, receive_buffer: int = 0) -> socket.socket | None:
    """Return a connection from ``address``, or None if it was refused."""
    peer = socket.socket()
    peer.settimeout(5)
    if receive_buffer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    try:
        peer.bind((address, 0))
        peer.connect(("127.0.0.1", port))
    except OSError:
        peer.close()
        return None
    return peer


def datagram_socket(ports: dict[str, int], address: str) -> socket.socket:
    """Return a socket of *address* that sends to the backbone and never blocks."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind((address, 0))
    peer.connect(("127.0.0.1", ports["backbone"]))
    peer.setblocking(False)
    return peer


def waiting(peer: socket.socket) -> Iterator[bytes]:
    """Yield the datagrams that *peer* has received."""
    with contextlib.suppress(OSError):
        while datagram := peer.recv(1 << 16):
            yield datagram


def fill_backbone(writer: socket.socket) -> None:
    """Push 10,000 small messages."""
    for n in range(10_000):
        with contextlib.suppress(BlockingIOError):
            writer.send(wire.push(b"%0200d" % n))
        if n % 50 == 0:
            time.sleep(0.005)


def together(count: int, again: Callable[[threading.Event], None], stopped: Stopped) -> None:
    """Run *again* in *count* threads until the attack is stopped; it is called with the event that ends it."""
    ended = threading.Event()
    for _ in range(count):
        threading.Thread(target=again, args=(ended,), daemon=True).start()
    while not stopped(0.5):
        pass
    ended.set()


def insecure() -> ssl.SSLContext:
    """Return a context of clients that check no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def living(peers: list[socket.socket]) -> int:
    """Return how many of the connections the server has not closed, after reading what they received."""
    count = 0
    for peer in peers:
        peer.setblocking(False)
        try:
            while chunk := peer.recv(1 << 16):
                pass
        except BlockingIOError:
            chunk = b"x"
        except OSError:
            chunk = b""
        count += bool(chunk)
    return count


def nothing(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    while not stopped(0.5):
        pass
    return "nothing was done", []


def trickle(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    frame = wire.publish(b"trickle", 1, bytes((16 << 20) - 100))
    peers = [peer for _ in range(200) if (peer := connect(ports["figg"], address))]
    sent, step = 0, 8 << 10
    while not stopped(1.0 if sent else 0.0):
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.setblocking(False)
                peer.send(frame[sent : sent + step])
        sent += step
    return f"{len(peers)} connections sent {sent >> 10} KiB of 16 MiB each, {living(peers)} are left", []


def streams(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    made = acked = connections = 0
    peer, frames = None, wire.Frames()
    while not stopped(0):
        if peer is None:
            peer, frames = connect(ports["figg"], address), wire.Frames()
            connections += 1
            if peer is None:
                time.sleep(0.01)
                continue
        batch = b"".join(wire.publish(b"%0255d" % (made + i), made + i, b"x") for i in range(200))
        try:
            peer.sendall(batch)
            made += 200
            while select.select([peer], [], [], 0 if made - acked < 10_000 else 1)[0]:
                chunk = peer.recv(1 << 16)
                if not chunk:
                    raise ConnectionError
                acked = max([acked, *(number for kind, _, number, _ in frames.feed(chunk) if kind == wire.ACK)])
        except OSError:
            peer.close()
            peer = None
    return f"{made} names in {connections} connections, {acked} acknowledged", []


def subscriptions(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peers: list[socket.socket] = []
    wanted = b"".join(wire.attach(b"subscription-%d" % n, None) for n in range(1000))
    while not stopped(0.0 if len(peers) < 300 else 0.5):
        if len(peers) < 300:
            peer = connect(ports["figg"], address)
            if peer is None:
                time.sleep(0.01)
                continue
            with contextlib.suppress(OSError):
                peer.sendall(wanted)
            peers.append(peer)
    return f"{len(peers)} connections asked for 1,000 subscriptions each, {living(peers)} are left", []


def silent(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peers: list[socket.socket] = []
    refused = 0
    listeners = [ports[name] for name in ("figg", "lumberjack", "relink", "http")]
    while not stopped(0.0 if len(peers) + refused < 4200 * len(listeners) else 0.5):
        for _ in range(100 if len(peers) + refused < 4200 * len(listeners) else 0):
            n = len(peers) + refused
            peer = connect(listeners[n % len(listeners)], f"127.0.1.{1 + n // len(listeners) % 40}")
            if peer is None:
                refused += 1
            else:
                peers.append(peer)
    return f"{len(peers)} connections were made, {refused} refused, {living(peers)} are left", []


def keepalives(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peers = [datagram_socket(ports, address) for _ in range(1100)]
    sent = acked = 0
    while not stopped(2.0 if sent else 0.0):
        for peer in peers:
            with contextlib.suppress(OSError):
                sent += peer.send(wire.keepalive(peer.getsockname()[1], os.urandom(16), wire.ANY, flags=0)) > 0
            acked += sum(datagram[0] == wire.KEEPALIVE_ACK for datagram in waiting(peer))
    return f"{sent} KEEPALIVEs of 1,100 ports, {acked} acknowledged", []


def requests(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    with datagram_socket(ports, WRITER) as writer:
        fill_backbone(writer)
    peer = datagram_socket(ports, STRANGER)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    request = struct.pack(">B4sHHIHI", 4, bytes(4), peer.getsockname()[1], 0, 0, 0xFFFF, 0xFFFFFFFF)
    sent = got = 0
    while not stopped(0.12):
        with contextlib.suppress(OSError):
            sent += peer.send(request)
        got += sum(map(len, waiting(peer)))
    wrong = [f"{sent} bytes of REQUESTs brought {got} bytes"] if got > 3 * sent else []
    return f"{sent} bytes were sent, {got} came", wrong


def gaps(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peers = [datagram_socket(ports, address) for _ in range(40)]
    fill_backbone(peers[0])
    sent = got = turns = 0
    while not stopped(0.05):
        turns += 1
        for number, peer in enumerate(peers):
            with contextlib.suppress(BlockingIOError):
                peer.send(struct.pack(">B12x16s", wire.KEEPALIVE, bytes(16)))
            for n in range(25):
                seq = 1 + (turns * 25 + n) * 2 % 10_000 + number % 2
                with contextlib.suppress(BlockingIOError):
                    sent += peer.send(struct.pack(">B6xHIHI", 4, 0, seq, 0, seq)) > 0
            got += sum(datagram[0] == wire.DELIVER for datagram in waiting(peer))
    return f"{sent} REQUESTs brought {got} records", []


def zmtp(port: int, address: str, kind: bytes, receive_buffer: int = 4096) -> socket.socket | None:
    """Return a ZeroMQ connection (ZMTP 3.0, NULL) after its handshake, or None if it was refused."""
    peer = connect(port, address, receive_buffer)
    if peer is None:
        return None
    try:
        peer.sendall(wire.ZMTP_GREETING + wire.zmtp_ready(kind))
        # Read the whole greeting: the server ends a connection that sends a message before the server's READY.
        exactly(peer, 64)
        exactly(peer, exactly(peer, 2)[1])
    except OSError:
        peer.close()
        return None
    return peer


def exactly(peer: socket.socket, size: int) -> bytes:
    """Return the next ``size`` bytes; MSG_WAITALL may return fewer from a socket with a timeout."""
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("the server has closed the connection")
        data += more
    return data


def event(number: int, size: int) -> bytes:
    return wire.zmtp_message(wire.bus_event(b"/attack/", 0, number, bytes(size)))


def deaf_subs(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    base = ports["eventbus"]
    peers = [peer for _ in range(20) if (peer := zmtp(base + 1, address, b"SUB"))]
    for peer in peers:
        peer.sendall(wire.zmtp_message([b"\1"]))
    writer, reader = zmtp(base + 2, address, b"DEALER"), zmtp(base + 1, WRITER, b"SUB", 4 << 20)
    if writer is None or reader is None:
        return "nobody could connect", ["the event bus takes no connections"]
    writer.settimeout(PATIENCE)
    reader.sendall(wire.zmtp_message([b"\1"]))
    reader.setblocking(False)
    sent = got = 0
    ended, heard = False, time.monotonic()
    # On a busy machine it is behind at the end, and reads what it was promised as long as more comes.
    while not ended or (got >> 20 < sent and time.monotonic() < heard + PATIENCE / 2):
        ended = ended or stopped(0.02)
        select.select([reader], [], [], 0.1 if ended else 0)
        with contextlib.suppress(OSError):
            while chunk := reader.recv(1 << 20):
                got += len(chunk)
                heard = time.monotonic()
        if ended:
            continue
        with contextlib.suppress(OSError):
            if sent < MOST_EVENTS:
                writer.sendall(event(sent, 1 << 20))
                sent += 1
    wrong = [f"a subscriber that reads got {got >> 20} of {sent} events of 1 MiB"] if got >> 20 < sent else []
    return f"{len(peers)} subscribers did not read, one that does got {got >> 20} of {sent} events of 1 MiB", wrong


def deaf_dealers(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    base = ports["eventbus"]
    writer, written = zmtp(base + 2, WRITER, b"DEALER"), 0
    if writer is not None:
        with contextlib.suppress(OSError):  # this peer answers no heartbeats
            while written < 3000 and not stopped(0):
                writer.sendall(event(written, 8 << 10))
                written += 1
    peers: list[Any] = []
    asked = 0
    while not stopped(0.2):
        if len(peers) < 100:
            peers += [peer for _ in range(20) if (peer := zmtp(base, address, b"DEALER"))]
            for peer in peers[-20:]:
                with contextlib.suppress(OSError):
                    peer.sendall(wire.zmtp_message([b"SYNCSTART", b"", bytes(8)]))
                    asked += 1
    return f"{asked} clients asked for {written} events of 8 KiB and did not read them", []


def questions() -> list[tuple[str, bytes]]:
    """Return listeners, each with a request by which a client reads the stream "deaf" there."""
    http = "GET /streams/deaf{} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return [
        ("http", http.format("").encode()),
        ("http", http.format("/live?from=1").encode()),
        ("figg", wire.attach(b"deaf", 0)),
        ("relink", bytes(8) + wire.relink_hello(b"subscribe:deaf@0")),
    ]


def deaf_readers(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    writer = connect(ports["figg"], WRITER)
    if writer is None:
        return "nobody could connect", ["Figg takes no connections"]
    writer.settimeout(PATIENCE)
    writer.sendall(b"".join(wire.publish(b"deaf", number, b"\1" * ((16 << 20) - 100)) for number in (1, 2)))
    wait_for_ack(writer, 2)
    peers: list[socket.socket] = []
    for listener, asked in itertools.islice(itertools.cycle(questions()), 250):
        if (peer := connect(ports[listener], address, 4096)) is not None:
            peer.sendall(asked)
            peers.append(peer)
    published = 2
    while not stopped(0.02):
        published += 1
        writer.sendall(wire.publish(b"deaf", published, bytes(256 << 10)))
        wait_for_ack(writer, published)
    return f"{len(peers)} readers did not read {len(peers) * 32} MiB, and {published >> 2} MiB that came later", []


def wait_for_ack(peer: socket.socket, number: int) -> None:
    """Read until Figg has acknowledged message *number*."""
    frames = wire.Frames()
    while not any(kind == wire.ACK and acked >= number for kind, _, acked, _ in frames.feed(peer.recv(1 << 16))):
        pass


def refusals(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    said = {
        "figg": wire.publish(b".reserved", 1, b"x"),
        "lumberjack": b"9Z" + bytes(20),
        "relink": bytes(8) + wire.relink_hello(b"nothing"),
        "http": b"nonsense\r\n\r\n",
    }
    selector = selectors.DefaultSelector()
    made = dict.fromkeys(said, 0)

    def come(listener: str) -> None:
        peer = connect(ports[listener], address)
        if peer is None:
            return
        made[listener] += 1
        with contextlib.suppress(OSError):
            peer.sendall(said[listener])
        selector.register(peer, selectors.EVENT_READ, listener)

    began = time.monotonic()
    for listener in said:
        for _ in range(20):
            come(listener)
    while not stopped(0):
        for key, _ in selector.select(0.1):
            peer: Any = key.fileobj
            try:
                gone = not peer.recv(1 << 16)
            except OSError:
                gone = True
            if gone:
                selector.unregister(peer)
                peer.close()
                come(key.data)
    seconds = time.monotonic() - began
    rates = {listener: count / seconds for listener, count in made.items()}
    often = [listener for listener, rate in rates.items() if rate > 20 * MOST_RETURNS]
    listed = ", ".join(f"{listener} {rate:.0f}" for listener, rate in rates.items())
    return f"connections a second by 20 peers each: {listed}", [f"refused peers come back at once: {often}"] * bool(
        often
    )


def patterns(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peer = HTTPConnection("127.0.0.1", ports["http"], timeout=PATIENCE, source_address=(address, 0))
    counts: dict[int, int] = {}

    def ask(method: str, target: str, body: bytes | None = None) -> int:
        peer.request(method, target, body)
        answer = peer.getresponse()
        answer.read()
        counts[answer.status] = counts.get(answer.status, 0) + 1
        return answer.status

    wrong: list[str] = []
    number = 0
    while not stopped(0):
        ask("POST", f"/streams/{'a' * 200}.{number}", b"x")
        ask("GET", f"/streams/*?match={'a*' * (1 + number % 7)}&subscription=near{number}&limit=0")
        ask("GET", f"/streams/*?match={'*a' * (1 + number % 7)}{number}!&subscription=far{number}&limit=0")
        ask("GET", f"/streams?match={'*a' * 8}b&limit=1")
        if ask("GET", f"/streams?match={'*' * 1_000}!") != 400:
            wrong = ["a pattern beyond the bounds was not refused"]
        number += 1
    peer.close()
    return f"answers by status: {counts}", wrong


def bombs(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    """Send a window that breaks the protocol within it again and again; check that it is never acknowledged."""
    events = b"".join(wire.json_event(number, b"x" * 1000) for number in range(1, 513))
    frame = b"2W" + struct.pack(">I", 1000) + wire.compressed(events + b"2A" + bytes(4), level=0)
    sent = acknowledged = 0
    while not stopped(0):
        peer = connect(ports["lumberjack"], address)
        if peer is None:
            continue
        with contextlib.suppress(OSError), peer:
            sent += 1
            peer.sendall(frame)
            while answer := peer.recv(6, socket.MSG_WAITALL):
                acknowledged += answer[2:] != bytes(4)
    wrong = f"{acknowledged} of {sent} windows that were not complete were acknowledged"
    return f"sent {sent} frames, {acknowledged} acknowledged", [wrong] * (acknowledged > 0)


def handshakes(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    context, made = insecure(), itertools.count()

    def again(ended: threading.Event) -> None:
        while not ended.is_set():
            peer = connect(ports[SECURED], address)
            next(made)
            with contextlib.suppress(OSError):
                if peer is not None:
                    with context.wrap_socket(peer) as secured:
                        secured.recv(1)

    began = time.monotonic()
    together(20, again, stopped)
    rate = next(made) / (time.monotonic() - began)
    wrong = [f"{rate:.0f} handshakes a second by 20 peers that fail"] if rate > 20 * MOST_RETURNS / 2 else []
    return f"{rate:.1f} handshakes a second by 20 peers", wrong


def keyed(key: str, body: bytes) -> bytes:
    head = f"POST /streams/keys HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def answers(peer: socket.socket, count: int) -> bytes:
    """Return the bytes that the server sends until it has answered *count* requests."""
    said = b""
    peer.settimeout(PATIENCE)
    while said.count(b"HTTP/1.1 ") < count or not said.endswith(b"}\n"):
        chunk = peer.recv(1 << 18)
        if not chunk:
            raise ConnectionError(f"the server has closed the connection after {said[-200:]!r}")
        said += chunk
    return said


def numbers_of(port: int, keys: list[str]) -> list[int]:
    """Publish with *keys* from another address than the attacker's; return the numbers that the server answers."""
    found: list[int] = []
    for key in keys:
        peer = connect(port, WRITER)
        assert peer is not None, "the server accepts no connections"
        with peer:
            peer.sendall(keyed(key, key.encode()))
            found.append(int(re.findall(rb'"first": (\d+)', answers(peer, 1))[0]))
    return found


def keys(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    mine = [f"honest-{number}" for number in range(50)]
    before = numbers_of(ports["http"], mine)
    peers = [peer for _ in range(20) if (peer := connect(ports["http"], address))]
    sent = 0
    while not stopped(0):
        for peer in peers:
            peer.sendall(b"".join(keyed(f"{address}-{sent + number}", b"x") for number in range(100)))
            sent += 100
        for peer in peers:
            answers(peer, 100)
    after = numbers_of(ports["http"], mine)
    doubled = sum(one != other for one, other in zip(before, after, strict=True))
    wrong = [f"{doubled} of {len(mine)} honest retries were stored twice"] if doubled else []
    return f"{sent} publishes with keys; {doubled} of {len(mine)} honest retries stored twice", wrong


def uploads(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    body = bytes(4_000_000)
    head = f"POST /streams/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    stored: list[int] = []

    def again(ended: threading.Event) -> None:
        peer = connect(ports["http"], address)
        if peer is None:
            return
        with peer, contextlib.suppress(OSError):
            peer.settimeout(PATIENCE)
            while not ended.is_set():
                peer.sendall(head)
                peer.sendall(body)
                answers(peer, 1)
                stored.append(len(body))

    together(60, again, stopped)
    return f"{len(stored)} bodies of {len(body)} bytes were stored", []


def records(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    context, peers = insecure(), []
    for _ in range(32):
        peer = connect(ports[TLS], address)
        assert peer is not None, "the server accepts no connections"
        peers.append(context.wrap_socket(peer))
        peers[-1].sendall(wire.publish(b"records", 1, bytes(14_000_000))[:64])
        peers[-1].setblocking(False)
    sent = 0
    while not stopped(0):
        for each in peers:
            with contextlib.suppress(ssl.SSLWantWriteError):
                for _ in range(64):
                    sent += each.send(b"x")
    return f"{sent} records of one byte", []


def flood(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    made = refused = 0
    held: list[socket.socket] = []
    while not stopped(0.002):
        host = 1000 + made // 100 % 60_000  # the first addresses are those of honest clients
        peer = connect(
            ports[("figg", "lumberjack", "relink")[made % 3]], f"127.{host >> 16}.{host >> 8 & 255}.{host & 255}"
        )
        made += 1
        if peer is None:
            refused += 1
            continue
        held.append(peer)
        if len(held) > 900:
            held.pop(random.randrange(len(held))).close()
    return f"{made} connections made, {refused} failed", []


def slow(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    frames = {"figg": wire.publish(b"slow", 1, bytes(9999)), "lumberjack": b"2W\0\0\0\1" + b"2J" + bytes(3)}
    frames["relink"] = bytes(8) + b"\x09publish:x" + bytes(3)
    peers = {listener: [peer for _ in range(300) if (peer := connect(ports[listener], address))] for listener in frames}
    sent = 0
    while not stopped(1.0 if sent else 0.0):
        for listener, frame in frames.items():
            for peer in peers[listener]:
                with contextlib.suppress(OSError):
                    peer.send(frame[sent % len(frame) :][:1])
        sent += 1
    left = ", ".join(f"{living(each)} of {len(each)} of {listener}" for listener, each in peers.items())
    return f"each sent {sent} bytes; {left} are left", []


def heavy(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    peers = [peer for number in range(200) if (peer := connect(ports["figg"], f"127.0.2.{1 + number // 50}"))]
    frame = memoryview(wire.publish(b"heavy", 1, bytes((16 << 20) - 100)))
    left = dict.fromkeys(peers, frame)
    for peer in peers:
        peer.setblocking(False)
    while not stopped(0 if left else 0.5):
        for peer in select.select([], left, [], 0.1)[1]:
            try:
                left[peer] = left[peer][peer.send(left[peer][: 1 << 20]) :]
            except OSError:
                left[peer] = left[peer][:0]
            if not left[peer]:
                del left[peer]
    return f"{len(peers) - len(left)} of {len(peers)} clients had sent 16 MiB, or were disconnected", []


def inflation(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    event = wire.json_event(1, bytes(1000))
    packer = zlib.compressobj(1)
    first, more = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    packed = zlib.compress(event * 4000, 9), first + more * 127
    held: list[socket.socket] = []
    thrown = 0
    while not stopped(0):
        peer = connect(ports["lumberjack"], address)
        if peer is None:
            continue
        body = packed[bool(thrown % 3)]
        thrown += 1
        with contextlib.suppress(OSError):
            peer.sendall(b"2W" + struct.pack(">I", 4000) + b"2C" + struct.pack(">I", len(body)) + body)
        held.append(peer)
        if len(held) > 20:
            with held.pop(0) as oldest, contextlib.suppress(OSError):
                oldest.recv(6)
    return f"{thrown} windows, of {len(packed[0])} bytes for 4 MiB or {len(packed[1])} bytes for 128 MiB", []


def datagrams(ports: dict[str, int], address: str, stopped: Stopped) -> Said:
    request = struct.pack(">B4sHHIHI", 4, bytes(4), 9, 0, 0, 0xFFFF, 0xFFFFFFFF)
    kinds = [wire.push(b"x" * 100), wire.keepalive(9, b"t" * 16), b"\xff" * 40, request]
    sent = 0
    with datagram_socket(ports, address) as sender:
        while not stopped(0.002):
            for _ in range(20):
                with contextlib.suppress(OSError):
                    sender.send(kinds[sent % len(kinds)])
                sent += 1
    return f"{sent} datagrams", []


ATTACKS: dict[str, Callable[[dict[str, int], str, Stopped], Said]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        *(nothing, trickle, streams, subscriptions, silent, keepalives, requests, gaps, deaf_subs, deaf_dealers),
        *(deaf_readers, refusals, patterns, bombs, handshakes, keys, uploads, records, flood, slow, heavy),
        *(inflation, datagrams),
    )
}
