"""Messages out of ZeroMQ's sockets and into them: a kernel apart, because it needs pyzmq, which is an extra.

The native one also needs the functions of the library under pyzmq; where it finds them hidden, the pure one serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose import kernels

if TYPE_CHECKING or not kernels.NATIVE:
    from fyrehose.kernels.pure.zeromq import Messages
else:
    try:
        from fyrehose.kernels.native.zeromq import Messages
    except ImportError:
        from fyrehose.kernels.pure.zeromq import Messages

__all__ = ["Messages"]
