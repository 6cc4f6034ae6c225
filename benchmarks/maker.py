"""Load maker that also knows the servers of others, a disk and a journal: see :mod:`fyrehose.bench.maker`."""

from __future__ import annotations

from benchmarks.appends import Appends
from benchmarks.disk import Disk
from benchmarks.wires import nats, resp
from fyrehose.bench import maker
from fyrehose.bench.streams import WIRES, WORKERS

maker.KINDS |= {"disk": Disk, "journal": Appends}
WIRES |= {
    "redis": (resp.Publisher, resp.Subscriber, resp.Subscriber),
    "nats": (nats.Publisher, nats.Subscriber, nats.Subscriber),
}

WORKERS |= {"redis": resp.GroupConsumer, "nats": nats.Puller}

if __name__ == "__main__":
    maker.main()
