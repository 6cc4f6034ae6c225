"""Says which kernels serve: ``python -m fyrehose.kernels``."""

import os
import sys

from fyrehose import kernels

if kernels.NATIVE:
    print("kernels: native")
elif os.environ.get("FYREHOSE_PURE") == "1":
    print("kernels: pure Python, as FYREHOSE_PURE=1 says")
else:
    print(
        "WARNING: the native kernels were not built, so the pure-Python ones serve: everything works, more slowly.\n"
        "         To have them, install a C compiler and Python's headers, then: touch setup.py, and the same again.",
        file=sys.stderr,
    )
