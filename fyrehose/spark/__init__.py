"""Streams as tables: read the durable records of a journal with Apache Spark.

    from fyrehose.spark import session, table
    spark = session()
    spark.read.format("fyrehose").load("data").groupBy("stream").count().show()

This package imports neither Twisted nor a protocol, and imports PySpark only when a session is requested.
"""

from fyrehose.spark.sessions import register, session
from fyrehose.spark.tables import table

__all__ = ["register", "session", "table"]
