"""A pool of image workers, whose thumbnails go to the stream "thumbs", each exactly once.

    python pool.py 127.0.0.1 8117 --workers 4

A thumbnail is published in the same commit that settles its image, so after any crash there is one thumbnail for each
image, or the image is still there.
"""

import argparse
from base64 import b64encode
from typing import Any

from thumbnail import halved
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from fyrehose.errors import LeaseLost
from fyrehose.protocols.http.workers import SharedWork, WorkClient, WorkRecord

OPTIONS = {"lease": 30, "limit": 3, "dead": "images.dead"}


async def handle(work: SharedWork, record: WorkRecord) -> None:
    """Publish the thumbnail of the image *record*, or reject it."""
    try:
        small = await deferToThread(halved, record.payload)
    except ValueError as error:
        await work.reject(record, str(error))  # It would not become an image by trying again.
        return
    result = {
        "stream": "thumbs",
        "payload_base64": b64encode(small).decode(),
        "content_type": "image/x-portable-pixmap",
    }
    try:
        await work.settle(record, publish=[result])
    except LeaseLost as lost:
        print(lost)  # Another worker has it, and nothing was published.


async def run(client: WorkClient, idle: float | None) -> None:
    """Handle images, one at a time, until none has come for *idle* seconds."""
    async with client.share("images", "thumbs-pool", options=OPTIONS, idle=idle) as work:
        async for record in work:
            await handle(work, record)


def main(reactor: Any) -> Deferred[Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="end when no image has come for so long")
    options = parser.parse_args()
    endpoint = HostnameEndpoint(reactor, options.host, options.port)
    client = WorkClient(reactor, endpoint, f"{options.host}:{options.port}")
    return gatherResults([Deferred.fromCoroutine(run(client, options.idle)) for _ in range(options.workers)])


if __name__ == "__main__":
    react(main)
