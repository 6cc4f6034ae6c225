"""The few loops that touch every message: native where they were built, else their pure-Python twins.

``kernels.native/NAME.pyx`` and ``kernels.pure/NAME.py`` have the same functions with the same signatures; the pure
one is the readable specification and what the native one is tested against.  ``FYREHOSE_PURE=1`` forces the pure ones.

One is apart, ``native/zeromq.pyx``: it reads sockets, which nothing else here knows of, so its twin is where they are,
``fyrehose.protocols.eventbus.messages``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("FYREHOSE_PURE") == "1":
    from fyrehose.kernels.pure import backbone, columns, eventbus, figg, lumberjack, relink

    NATIVE = False
else:
    try:
        from fyrehose.kernels.native import backbone, columns, eventbus, figg, lumberjack, relink

        NATIVE = True
    except ImportError:
        from fyrehose.kernels.pure import backbone, columns, eventbus, figg, lumberjack, relink

        NATIVE = False

__all__ = ["NATIVE", "backbone", "columns", "eventbus", "figg", "lumberjack", "relink"]
