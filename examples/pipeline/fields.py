"""Turn JSON documents into columns, whatever fields they have.

    {"host": {"name": "a"}, "tags": ["x"]}    ->    host.name = 'a', tags = '["x"]'

Each field becomes a column when it occurs for the first time, and keeps the type that it has then: bigint, double,
boolean or string.  Arrays are kept as JSON text.  A document is also kept as it was, in the column ``rescued``, if it
is no JSON object, or one of its values does not have the type of its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StructType,
    VariantType,
)

#: Most columns of a table; further fields are only in ``rescued``.  Some programs use ids as names of fields.
MOST = 1000
#: Type of a field whose values have several types.
MIXED = "mixed"
#: Types of values that a column of each type accepts, as a regular expression.
_ACCEPTED: dict[str, str] = {
    "bigint": "BIGINT",
    "double": "BIGINT|DOUBLE|FLOAT|DECIMAL.*",
    "boolean": "BOOLEAN",
    "string": "STRING|ARRAY.*",
}


@attrs.frozen
class Field:
    """A field of documents.

    :ivar path: names from the document to the field
    :ivar type: type of a column for its values
    """

    path: tuple[str, ...]
    type: str

    @property
    def name(self) -> str:
        """Return the name of the field's column."""
        return ".".join(self.path)


def with_fields(records: DataFrame, known: Mapping[str, str], reserved: set[str]) -> DataFrame:
    """Return ``records`` with a column for each field of their payloads, and ``rescued`` instead of ``payload``.

    :param known: columns that the table has, and their types
    :param reserved: names of columns that are not fields; a field of this name gets an underscore at its end
    """
    text = f.col("payload").cast("string")
    document = f.when(f.is_valid_utf8(text) & text.rlike(r"^\s*\{"), f.try_parse_json(text))
    # In a column of its own, so that each document is parsed once, and not once for each field.
    parsed = records.withColumn("_document", document)
    schema = parsed.agg(f.schema_of_variant_agg("_document")).collect()[0][0]
    columns, homeless = place(_decided(list(fields(schema)), parsed), known, reserved)
    misfits = [f.lit(False), f.col("_document").isNull(), *(_value(path).isNotNull() for path in homeless)]
    values = {}
    for name, (kind, paths) in columns.items():
        fitting = [_kind(path).rlike(f"^({_ACCEPTED[kind]})$") for path in paths]
        values[name] = f.coalesce(
            *(f.when(fits, _value(path, kind)) for path, fits in zip(paths, fitting, strict=True))
        )
        misfits += [~fits & (_kind(path) != "VOID") for path, fits in zip(paths, fitting, strict=True)]
    # The greatest: whether any of them is true; null is none.
    rescued = f.when(f.greatest(*misfits), f.col("payload"))
    own = [f.col(name) for name in records.columns if name != "payload"]
    return parsed.select(*own, *(value.alias(name) for name, value in values.items()), rescued.alias("rescued"))


def _decided(found: list[Field], parsed: DataFrame) -> list[Field]:
    """Return the fields, where those with values of several types have the most frequent one."""
    mixed = [field for field in found if field.type == MIXED]
    if not mixed:
        return found
    kinds = [_kind(_path(field.path) or "$") for field in mixed]
    modes = parsed.agg(*(f.mode(f.when(kind != "VOID", kind)) for kind in kinds)).collect()[0]
    types = {field.path: _type(kind) for field, kind in zip(mixed, modes, strict=True)}
    return [attrs.evolve(field, type=types.get(field.path, field.type)) for field in found]


def _type(kind: str | None) -> str:
    accepting = (name for name in ("bigint", "double", "boolean") if re.fullmatch(_ACCEPTED[name], kind or ""))
    return next(accepting, "string")


def fields(schema: str | None) -> Iterator[Field]:
    """Yield the fields of a schema as Spark's ``schema_of_variant_agg`` writes it."""
    if schema:
        # Spark calls it OBJECT here, and STRUCT where it reads a schema.
        ddl = re.sub(r"(`(?:[^`]|``)*`)|\bOBJECT<", lambda found: found[1] or "STRUCT<", schema)
        yield from _leaves((), DataType.fromDDL(ddl))


def _leaves(path: tuple[str, ...], kind: DataType) -> Iterator[Field]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _leaves((*path, field.name), field.dataType)
    elif path and not isinstance(kind, NullType):
        types: dict[type[DataType], str] = {
            LongType: "bigint",
            DoubleType: "double",
            DecimalType: "double",
            BooleanType: "boolean",
            VariantType: MIXED,
        }
        yield Field(path, types.get(type(kind), "string"))


def place(
    found: list[Field], known: Mapping[str, str], reserved: set[str]
) -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    """Return the type and the paths of each column, and the paths of fields that get no column.

    ``{"host.name": 1}`` and ``{"host": {"name": 1}}`` are the same column, as they are for Elasticsearch.
    """
    columns: dict[str, tuple[str, list[str]]] = {}
    homeless = []
    # Names that differ only in case are one column for Spark.
    names = {name.lower(): name for name in known}
    for field in found:
        path = _path(field.path)
        name = field.name + "_" * (field.name.lower() in reserved)
        taken = names.get(name.lower(), name if len(names) < MOST else None)
        if taken != name or path is None:
            homeless.append(path or _path(field.path[:1]) or "$")
            continue
        names[name.lower()] = name
        columns.setdefault(name, (known.get(name, field.type), []))[1].append(path)
    return columns, homeless


def _path(path: tuple[str, ...]) -> str | None:
    """Return a path as Spark reads it; None if it cannot name one of the fields."""
    if any("'" in name and '"' in name for name in path):
        return None
    return "$" + "".join(f'["{name}"]' if "'" in name else f"['{name}']" for name in path)


def _value(path: str, kind: str = "variant") -> Column:
    return f.try_variant_get("_document", path, kind)


def _kind(path: str) -> Column:
    return f.schema_of_variant(_value(path))
