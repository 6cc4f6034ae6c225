"""A TCP proxy between NATS servers, which cuts a server off from the others, or delays what they send to each other.

    node 0 --> proxy of node 1 --> node 1        a connection between two nodes passes the proxy of one of them

The proxy learns which node has opened a connection from its first message, which contains the node's name, such as
``n0``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from contextlib import suppress
from threading import Thread
from typing import Any

import attrs

NAME = re.compile(rb'"server_name":"n(\d+)"')
#: The name of the node is within so many bytes of a connection.
HELLO = 8192
#: How many delayed reads of a connection are kept at most.
PIECES = 1024


@attrs.define(eq=False)
class Link:
    """A connection between two nodes.

    :ivar source: the node that has opened it; None until its first message was read
    """

    target: int
    writers: list[asyncio.StreamWriter]
    source: int | None = None

    def touches(self, nodes: set[int]) -> bool:
        return self.target in nodes or self.source in nodes

    def sender(self, from_source: bool) -> int | None:
        return self.source if from_source else self.target

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@attrs.define(eq=False)
class Routes:
    """The proxies of all nodes, in a thread of their own.

    :ivar targets: the ports of the nodes' routes
    :ivar ports: the port of each node's proxy, set by :meth:`start`
    """

    targets: list[int]
    ports: list[int] = attrs.field(factory=list, init=False)
    #: How long everything between nodes is delayed, in seconds, in each direction.
    _delay: float = attrs.field(default=0.0, init=False)
    #: Nodes whose data reaches nobody; nodes that no data reaches; nodes whose connections are refused.
    _mute: set[int] = attrs.field(factory=set, init=False)
    _deaf: set[int] = attrs.field(factory=set, init=False)
    _closed: set[int] = attrs.field(factory=set, init=False)
    _links: set[Link] = attrs.field(factory=set, init=False)
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.new_event_loop, init=False)
    _servers: list[asyncio.Server] = attrs.field(factory=list, init=False)
    _thread: Thread = attrs.field(init=False)
    _changed: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = Thread(target=self._loop.run_forever, name="proxy of the routes", daemon=True)

    def start(self) -> None:
        self._thread.start()
        for node in range(len(self.targets)):
            self.ports.append(self._call(self._listen(node)))

    def stop(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, node: int, how: Collection[str]) -> None:
        """Cut *node* off.

        :param how: ``closed``: connections are closed and refused, as by a firewall; ``mute``, ``deaf`` or both:
            connections stay open, but data from the node (mute) or to it (deaf) is kept back
        """
        for kind in how:
            {"closed": self._closed, "mute": self._mute, "deaf": self._deaf}[kind].add(node)
        self._call(self._change())

    def heal(self, node: int) -> None:
        """Connect *node* again; data that was kept back arrives late."""
        for nodes in (self._closed, self._mute, self._deaf):
            nodes.discard(node)
        self._call(self._change())

    def delay(self, seconds: float) -> None:
        """Delay all data between nodes by *seconds* from now on."""
        self._delay = seconds

    def _call(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(10)

    async def _change(self) -> None:
        for link in list(self._links):
            if link.touches(self._closed):
                link.abort()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _listen(self, node: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(node, reader, writer)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _connected(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(node, [writer])
        pumps: list[asyncio.Future[None]] = []
        try:
            if node in self._closed:
                return
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.targets[node])
            link.writers.append(to_writer)
            self._links.add(link)
            pumps.append(asyncio.ensure_future(self._pump(link, reader, to_writer, True)))
            pumps.append(asyncio.ensure_future(self._pump(link, to_reader, writer, False)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the node is not running
        finally:
            for pump in pumps:
                pump.cancel()
            self._links.discard(link)
            link.abort()

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: bool) -> None:
        """Copy data from one side to the other, each piece after the delay that was set when it was read."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)
        sending = asyncio.ensure_future(self._send(link, pieces, writer, hello))
        seen = b""
        try:
            while (data := await reader.read(1 << 16)) and not sending.done():
                if hello and link.source is None and len(seen) < HELLO:
                    seen += data
                    found = NAME.search(seen)
                    link.source = int(found[1]) if found else None
                if link.touches(self._closed):
                    return
                await pieces.put((self._loop.time() + self._delay, data))
        except OSError:
            pass  # one of the two nodes has ended the connection
        finally:
            sending.cancel()

    async def _send(
        self, link: Link, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, hello: bool
    ) -> None:
        with suppress(OSError):
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                while link.sender(hello) in self._mute or link.sender(not hello) in self._deaf:
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()
