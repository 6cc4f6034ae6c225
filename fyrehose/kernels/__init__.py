"""Hot loops that touch every message: compiled with Cython where possible, otherwise in pure Python.

``kernels/native/NAME.pyx`` and ``kernels/pure/NAME.py`` have the same functions with the same signatures.  The pure
module is the readable specification, and the reference in tests.  ``FYREHOSE_PURE=1`` selects the pure modules.

``commit`` is the one kernel that makes system calls.  Only ``journal/files.py`` imports it, and this package does not,
so codecs and sessions, which import this package, can do no I/O.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

#: Whether the environment selects the pure modules; any value but 1 means that it does not.
PURE = os.environ.get("FYREHOSE_PURE") == "1"

if TYPE_CHECKING or PURE:
    from fyrehose.kernels.pure import backbone, columns, eventbus, figg, lumberjack, relink

    NATIVE = False
else:
    try:
        from fyrehose.kernels.native import backbone, columns, eventbus, figg, lumberjack, relink

        NATIVE = True
    except ImportError:
        from fyrehose.kernels.pure import backbone, columns, eventbus, figg, lumberjack, relink

        NATIVE = False

__all__ = ["NATIVE", "PURE", "backbone", "columns", "eventbus", "figg", "lumberjack", "relink"]
