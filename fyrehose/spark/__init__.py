"""Streams as tables: read the durable records of a journal with Apache Spark.

    from fyrehose.spark import session, table
    spark = session()
    spark.read.format("fyrehose").load("data").groupBy("stream").count().show()

This package imports neither Twisted nor a protocol, and imports PySpark only when a session is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.spark.spark_session import register, session
    from fyrehose.spark.tables import table
    from fyrehose.spark.views import catalog
else:
    __getattr__, __dir__ = lazily(
        __name__, {"spark_session": "register session", "tables": "table", "views": "catalog"}
    )

__all__ = ["catalog", "register", "session", "table"]
