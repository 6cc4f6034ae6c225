"""``parse``: parse JSON payloads as VARIANT, or by a schema; payloads that do not fit go into their own column.

value      the document: a VARIANT, or a struct of the schema
rescued    the payload, where it is not JSON in UTF-8, or a field does not have the type that the schema gives it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MISFIT = "_misfit"


def parsed(records: DataFrame, schema: str | None = None) -> DataFrame:
    """Add the columns ``value`` and ``rescued``; each document is parsed once, however many columns the schema has.

    ``value`` is null if the payload does not fit at all; a field of ``value`` is null if it does not have the schema's
    type.

    :param schema: a DDL string, such as ``level string, ms double``; None for VARIANT
    """
    from pyspark.sql import functions as f

    text = f.col("payload").cast("string")
    if schema is None:
        value = f.try_parse_json(text)
    else:
        value = f.from_json(text, f"{schema}, {_MISFIT} string", {"columnNameOfCorruptRecord": _MISFIT})
    # The value is stored in a column, because Spark would otherwise parse the payload again for every expression that
    # names one of its fields.
    found = records.withColumn("value", f.when(f.is_valid_utf8(text), value))
    if schema is None:
        return found.withColumn("rescued", f.when(f.col("value").isNull(), f.col("payload")))
    fits = f.col("value").isNotNull() & f.col(f"value.{_MISFIT}").isNull()
    names = found.select("value.*").columns
    empty = f.array(*(f.col(f"value.{name}").isNull() for name in names if name != _MISFIT))
    nothing = f.col(f"value.{_MISFIT}").isNotNull() & f.forall(empty, lambda null: null)
    return found.withColumns(
        {
            "rescued": f.when(~fits, f.col("payload")),
            "value": f.when(~nothing, f.col("value").dropFields(_MISFIT)),
        }
    )


def parse(records: DataFrame, output: str | Path, schema: str | None = None) -> tuple[int, int]:
    """Write parsed records to ``output``, replacing it; return how many fit, and how many were rescued."""
    from pyspark.sql import functions as f

    parsed(records, schema).drop("payload").write.mode("overwrite").parquet(str(output))
    rescued = f.count("rescued")
    total, bad = records.sparkSession.read.parquet(str(output)).agg(f.count("*"), rescued).collect()[0]
    return total - bad, bad
