"""A view of every stream, for SQL: ``select ... from streams.orders``."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fyrehose.errors import ConfigError
from fyrehose.offline.places import place
from fyrehose.patterns import Pattern
from fyrehose.spark import tables
from fyrehose.spark.statements import TEXTS, unity_literal, unity_quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The database of the views.
DATABASE = "streams"
#: The setting of Spark with the name of the database of global views, which all sessions share.
SETTING = "spark.sql.globalTempDatabase"


def catalog(
    spark: SparkSession,
    lake: str | Path | None,
    journal: str | None = None,
    *,
    match: str = "*",
    gaps: str = "error",
    live: bool = False,
) -> list[str]:
    """Make a view of every stream, so that ``spark.sql("select * from streams.orders")`` works.

    A view has the records that were durable when it was first queried; call this again for newer ones, or make views
    with *live*.  Names with other characters than letters, digits and ``_`` need backquotes: ``streams.`web.access```.
    The column ``text`` is the payload as text, or null if that is not UTF-8.

    :param lake, journal, gaps: as in :func:`fyrehose.spark.table`
    :param match: a pattern of streams, in which ``*`` stands for any text; the server's own streams, whose names begin
        with a dot, match only a pattern that begins with a dot, too
    :param live: each query sees what is durable when it runs; one task reads it
    :return: the names of the streams that have a view
    :raises ConfigError: the session uses another database for such views
    :raises JournalError: the lake does not exist, or its log is damaged
    """
    from fyrehose.spark.lake import lake_of, streams_of_both

    if spark.conf.get(SETTING) != DATABASE:
        raise ConfigError(
            f"this session cannot have views in the database {DATABASE!r}: start it with fyrehose.spark.session(), or "
            f"with .config('{SETTING}', '{DATABASE}')"
        )
    target = lake_of(lake, journal)
    names = set(filter(Pattern(match).covers, streams_of_both(target, journal)))
    # Spark compares names of views without regard to case.
    same = Counter(name.lower() for name in names)
    doubtful = sorted(name for name in names if same[name.lower()] > 1)
    if doubtful:
        warnings.warn(
            f"no views of {', '.join(map(repr, doubtful))}: Spark does not distinguish these names; read them with "
            "fyrehose.spark.table(..., streams=[NAME])",
            stacklevel=2,
        )
    made = sorted(names.difference(doubtful))
    source = None if journal is None else place(journal)  # an absolute path, because workers have other directories
    views = tables.Views(spark, target, journal, gaps)
    for name in made:
        quoted = unity_quoted(name)
        if live:
            of = ", ".join("null" if each is None else unity_literal(str(each)) for each in (target, source, name))
            records = (
                f"select *, {TEXTS['unity']} as text from fyrehose_records({of}) where stream = {unity_literal(name)}"
            )
            spark.sql(f"create or replace global temporary view {quoted} as {records}")
        else:
            views.of(name).selectExpr("*", f"{TEXTS['unity']} as text").createOrReplaceGlobalTempView(quoted)
    return made
