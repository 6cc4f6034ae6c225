"""Streams as tables: Apache Spark reads what is durable in a journal.

    from fyrehose.spark import session, table
    spark = session()
    spark.read.format("fyrehose").load("data").groupBy("stream").count().show()

Nothing here imports Twisted or a protocol, and PySpark is imported when a session is asked for.
"""

from fyrehose.spark.sessions import register, session
from fyrehose.spark.tables import table

__all__ = ["register", "session", "table"]
