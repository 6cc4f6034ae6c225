#!/usr/bin/env python3
"""Measure how many bytes each reader reads of a lake for one of its streams, beside the size of the lake.

    spark_layout.py LAKE STREAM...

Each reader runs in a process of its own, and reads all columns.  Bytes are those that the process asked the system for
(rchar of /proc/self/io), less what it asked for before it began; Polars maps files, and is told not to.
"""

from __future__ import annotations

import subprocess
import sys

from fyrehose.spark.lake import Lake

READERS = {
    "duckdb": """
import duckdb
from deltalake import DeltaTable
records = DeltaTable(lake).file_uris()
duckdb.execute("set threads = 1")
for _ in range(2):  # The first time, the reader also loads its own code.
    begin = asked()
    query = "select * from read_parquet($f) where stream = $s"
    rows = len(duckdb.execute(query, {"f": records, "s": stream}).fetchall())
""",
    "pyarrow": """
from deltalake import DeltaTable
from pyarrow import compute
records = DeltaTable(lake).to_pyarrow_dataset()
for _ in range(2):  # The first time, the reader also loads its own code.
    begin = asked()
    rows = records.to_table(filter=compute.field("stream") == stream).num_rows
""",
    "polars": """
import os
os.environ["POLARS_FORCE_ASYNC"] = "1"
import polars
records = polars.scan_delta(lake)
for _ in range(2):  # The first time, the reader also loads its own code.
    begin = asked()
    rows = records.filter(polars.col("stream") == stream).collect().height
""",
    "spark": """
from fyrehose.spark import session, table
spark = session("layout", "local[1]", memory="1g", quick=True)
records = table(spark, lake, streams=[stream])
jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
asked = lambda: int(open(f"/proc/{jvm}/io").read().split()[1])
spark.range(1).count()
for _ in range(2):  # The first time, the reader also loads its own code.
    begin = asked()
    rows = records.drop("source").write.format("noop").mode("append").save()
""",
}
PROGRAM = """
import sys
lake, stream = sys.argv[1:]
def asked():
    return int(open("/proc/self/io").read().split()[1])
{}
print(asked() - begin, rows)
"""


def main() -> None:
    lake, *streams = sys.argv[1:]
    files = [file.size for file in Lake.existing(lake).files()]
    print(f"{lake}: {sum(files) / 1e6:.1f} MB in {len(files)} files")
    for stream in streams:
        for name, body in READERS.items():
            command = [sys.executable, "-c", PROGRAM.format(body), lake, stream]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                print(f"{stream} {name}: failed: {ended.stderr.strip().splitlines()[-1]}")
                continue
            size, rows = ended.stdout.splitlines()[-1].split()
            share = int(size) / sum(files)
            print(f"{stream} {name}: {int(size) / 1e6:.1f} MB, {100 * share:.1f} %, {rows} rows", flush=True)


if __name__ == "__main__":
    main()
