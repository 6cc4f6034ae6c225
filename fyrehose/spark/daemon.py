"""Fork the Python workers of a local Spark session, as ``pyspark.daemon`` does, with less to import in each of them.

Spark puts its largest jar on Python's path of modules, so a worker that looks for a module or a package's version reads
the jar's directory again.  The modules that are imported here start no threads, so that workers can be forked
afterwards.  pyarrow, pandas and numpy start threads, so only the workers import them.
"""

from __future__ import annotations

import sys

for entry in [path for path in sys.path if path.endswith(".jar")]:
    sys.path.remove(entry)
    sys.path_importer_cache.pop(entry, None)

from pyspark.daemon import manager  # noqa: E402

import fyrehose.spark.plan  # noqa: E402, F401

if __name__ == "__main__":
    manager()
