"""Print whether the native or the pure-Python kernels are in use: ``python -m fyrehose.kernels``."""

import sys

from fyrehose import kernels

if kernels.NATIVE:
    print("kernels: native")
elif kernels.PURE:
    print("kernels: pure Python, because FYREHOSE_PURE=1 is set")
else:
    print(
        "WARNING: the native kernels are not built; the pure-Python kernels are in use, which are slower.\n"
        "         To build them, install a C compiler and Python's headers, run touch setup.py, and build again.",
        file=sys.stderr,
    )
