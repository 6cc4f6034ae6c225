"""``parse``: parse JSON payloads as VARIANT, or by a schema; payloads that are not JSON are written separately."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GOOD, _BAD = "parsed", "unparsed"


def parsed(records: DataFrame, schema: str | None = None) -> DataFrame:
    """Add a column ``value`` with the payload as VARIANT, or as a struct of ``schema`` (a DDL string).

    ``value`` is null where the payload is not JSON in UTF-8, or does not fit the schema.
    """
    from pyspark.sql import functions as f

    text = f.col("payload").cast("string")
    if schema is None:
        value = f.try_parse_json(text)
    else:
        # from_json makes a row of nulls of what it cannot understand: the column for the corrupt tells them apart.
        whole = f.from_json(text, f"{schema}, _corrupt string", {"columnNameOfCorruptRecord": "_corrupt"})
        value = f.when(whole["_corrupt"].isNull(), whole.dropFields("_corrupt"))
    return records.withColumn("value", f.when(f.is_valid_utf8(text), value))


def parse(records: DataFrame, output: str | Path, schema: str | None = None) -> tuple[int, int]:
    """Write parsed records to OUTPUT/parsed, and the others unchanged to OUTPUT/unparsed; return both counts.

    Running it again replaces both.
    """
    from pyspark.sql import functions as f

    good, bad = str(Path(output) / _GOOD), str(Path(output) / _BAD)
    both = parsed(records, schema)
    both.where(f.col("value").isNotNull()).drop("payload").write.mode("overwrite").parquet(good)
    both.where(f.col("value").isNull()).drop("value").write.mode("overwrite").parquet(bad)
    spark = records.sparkSession
    return spark.read.parquet(good).count(), spark.read.parquet(bad).count()
