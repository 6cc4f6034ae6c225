"""Use an installed ``fyrehose-protocols`` as a person would, without a server and without Twisted.

    python tools/try_protocols.py DIRECTORY

It runs with the Python of an environment that has fyrehose-protocols, attrs and trio; DIRECTORY has the example
programs.  ``dist.py`` and ``tests/live/test_protocols_alone.py`` run it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from random import Random
from socket import SO_LINGER, SOL_SOCKET, create_connection
from struct import pack
from typing import Any

#: What the distribution and all of its requirements may take on disk, compiled modules included, in bytes.
MOST_BYTES = 2 << 20
#: How long an example program may take to answer on a busy machine, in seconds.
PATIENCE = 60.0
#: Packages of the server, none of which a codec may need.
ABSENT = ("twisted", "zope", "h11", "crc32c", "click", "rich", "OpenSSL", "cryptography", "nacl")
#: Golden bytes of docs/protocols: a PUBLISH of "hi" to "a", a PUSH of "hi"; of Relink a version, a hello and a message.
FIGG = "0005 0001 00000013 00000001 61 0000000000000001 00000002 6869"
PUSH = "02 0002 000000000000 6869"
RELINK_HELLO = "0000000000000000 09 7075626c6973683a73 0000 00 000000 00000000000000000000000000000000"
RELINK_MESSAGE = "1101020000000000 6869000000000000"
#: A window of two events of a Lumberjack writer.
WINDOW = b"2W" + pack(">I", 2) + b"".join(b"2J" + pack(">II", n, 7) + b'{"n":%d}' % n for n in (1, 2))


def size_of(name: str) -> int:
    """Return the size of the files of a distribution, those that Python compiles included, in bytes."""
    files = [Path(str(path.locate())) for path in distribution(name).files or []]
    compiled = {path for file in files for path in file.parent.glob(f"__pycache__/{file.stem}.*.pyc")}
    return sum(path.stat().st_size for path in {*files, *compiled} if path.exists())


def check_figg() -> None:
    from fyrehose.protocols.figg import FiggServerSession
    from fyrehose.sessions import events_of

    session = FiggServerSession()
    golden = bytes.fromhex(FIGG)
    events = [event for byte in golden for event in events_of(session, bytes([byte]))]
    found = [(run.stream, bytes(message)) for event in events for run in event.runs for message in run.payloads()]
    assert found == [("a", b"hi")], found


def check_lumberjack() -> None:
    from fyrehose.protocols.lumberjack import LumberjackServerSession
    from fyrehose.sessions import events_of

    session = LumberjackServerSession()
    for event in [event for byte in WINDOW for event in events_of(session, bytes([byte]))]:
        assert {bytes(message) for message in event.payloads()} <= {b'{"n":1}', b'{"n":2}'}
        session.durable(len(event))
    assert b"".join(session.data_to_send()) == bytes.fromhex("3241 00000002")


def check_relink() -> None:
    from fyrehose.protocols.relink.link import Link, LinkLimits
    from fyrehose.protocols.relink.session import ListenerSession

    session = ListenerSession(LinkLimits())
    (asked,) = session.receive_data(bytes.fromhex(RELINK_HELLO))
    assert asked.hello.terms.endpoint == "publish:s", asked
    session.accept(Link(asked.hello.terms, False, 5, 6, LinkLimits()), resumed=False)
    events = [*session.receive_data(b""), *session.receive_data(bytes.fromhex(RELINK_MESSAGE))]
    (received,) = [event for event in events if hasattr(event, "messages")]
    assert (received.channel, list(received.messages)) == (0, [(b"hi",)]), events


def check_backbone() -> None:
    from fyrehose.protocols.backbone.session import BackboneServerSession
    from fyrehose.protocols.backbone.settings import BackboneSettings

    session = BackboneServerSession(BackboneSettings(), lambda: (1, 0), lambda _: False, Random(1), lambda *_: True)
    golden = bytes.fromhex(PUSH)
    (pushed,) = session.receive_datagrams(golden, len(golden), ("127.0.0.1", 4000), 0.0)
    assert [bytes(message) for message in pushed.payloads()] == [b"hi"], pushed


def check_eventbus() -> None:
    from fyrehose.protocols.eventbus.session import CollectorSession, DealerSession
    from fyrehose.protocols.eventbus.zmtp import Null

    server, client = CollectorSession(Null(), 1_000, "s"), DealerSession()
    while server.out or client.out:
        client.receive_data(b"".join(server.data_to_send()))
        server.receive_data(b"".join(client.data_to_send()))
    uuid = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
    client.send([b"/a/", bytes(8), b"me", b"2024-05-01T10:20:30.123Z", uuid, b"\x01"])
    (published,) = server.receive_data(b"".join(client.data_to_send()))
    assert [bytes(each) for run in published.runs for each in run.payloads()] == [b"\x01"], published


def check_names_of_the_server(fyrehose: Any) -> None:
    """Check that a name of the server raises an ImportError that names the package to install."""
    said = ""
    try:
        fyrehose.FileJournal  # noqa: B018
    except ImportError as error:
        said = str(error)
    assert said == "fyrehose.FileJournal belongs to the server: pip install fyrehose", said


def check_loop(program: Path) -> None:
    """Check an example program: reset a connection, send events in two pieces, then bytes of another protocol."""
    process = subprocess.Popen(
        [sys.executable, program, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        port = int(process.stdout.readline().removeprefix("port "))
        with create_connection(("127.0.0.1", port), PATIENCE) as socket:
            socket.sendall(WINDOW[:20])
            socket.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))  # Closing it is a reset.
        with create_connection(("127.0.0.1", port), PATIENCE) as socket:
            socket.sendall(WINDOW[:20])
            socket.sendall(WINDOW[20:])
            acknowledged = b""
            while len(acknowledged) < 6:
                more = socket.recv(6 - len(acknowledged))
                assert more, f"{program} closed the connection after {acknowledged!r}"
                acknowledged += more
            assert acknowledged == bytes.fromhex("3241 00000002"), acknowledged
            socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):  # It has not read all of that.
                assert socket.recv(1) == b""
        assert [process.stdout.readline() for _ in range(2)] == ['{"n":1}\n', '{"n":2}\n']
        assert "bad-version" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    import fyrehose
    import fyrehose.kernels

    found = [name for name in ABSENT if find_spec(name) is not None]
    assert not found, f"the environment has {found}, so this shows nothing"
    file = Path(fyrehose.__file__)
    assert file.is_relative_to(sys.prefix), f"imported {file}, which is not what was installed"
    assert not fyrehose.kernels.NATIVE
    for check in (check_figg, check_lumberjack, check_relink, check_backbone, check_eventbus):
        check()
    check_names_of_the_server(fyrehose)
    for name in ("with_sockets", "with_asyncio", "with_trio"):
        check_loop(Path(sys.argv[1], f"{name}.py"))
    size = size_of("fyrehose-protocols")
    whole = size + size_of("attrs")
    assert whole < MOST_BYTES, f"{whole} bytes"
    print(f"fyrehose-protocols works: {size >> 10} KiB, {whole >> 10} KiB with attrs")


if __name__ == "__main__":
    main()
