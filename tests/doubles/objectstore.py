"""Run moto's S3 server on 127.0.0.1, which answers one request at a time.

Moto looks for an object and stores it in two steps, in threads, so two puts with ``If-None-Match: *`` may both
succeed; in S3, one fails.  Of two archives that commit the same version of a log, both would continue, and the second
entry would replace the first: the records of a round would be lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


def serve(port: int) -> None:
    """Serve S3 at a port, until the process ends."""
    moto, alone = DomainDispatcherApplication(create_backend_app), Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with alone:
            found: Iterable[bytes] = moto(environ, start_response)
            return found

    run_simple("127.0.0.1", port, answer, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
