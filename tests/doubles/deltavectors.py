"""Delete rows of a Delta table by deletion vectors, as Spark's Delta and Databricks do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def last_version(lake: Path) -> int:
    return max(int(path.stem) for path in (lake / "_delta_log").glob("*.json"))


def entries(lake: Path) -> list[dict[str, Any]]:
    """Return the actions of the log, without checkpoints, in order."""
    paths = sorted((lake / "_delta_log").glob("*.json"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def commit(lake: Path, actions: Sequence[dict[str, Any]]) -> None:
    path = lake / "_delta_log" / f"{last_version(lake) + 1:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def require(lake: Path, feature: str) -> None:
    """Add a feature that readers must know."""
    known: dict[str, Any] = next(entry["protocol"] for entry in reversed(entries(lake)) if "protocol" in entry)
    features = sorted({*known.get("readerFeatures", []), feature})
    writer = sorted({*known.get("writerFeatures", []), "appendOnly", "invariants", *features})
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": writer}
    commit(lake, [{"protocol": protocol}])


def delete_rows(lake: Path, path: str, rows: Sequence[int]) -> None:
    """Delete rows of one file, by their indexes in it."""
    if not any("deletionVectors" in entry.get("protocol", {}).get("readerFeatures", []) for entry in entries(lake)):
        require(lake, "deletionVectors")
    add: dict[str, Any] = next(e["add"] for e in reversed(entries(lake)) if e.get("add", {}).get("path") == path)
    remove = {"path": path, "dataChange": True, "deletionTimestamp": 1, "partitionValues": add["partitionValues"]}
    commit(lake, [{"remove": remove}, {"add": add | {"deletionVector": vector(rows)}}])


def vector(rows: Sequence[int]) -> dict[str, Any]:
    """Return the descriptor of a deletion vector that is in the log itself."""
    values = sorted(set(rows))
    assert values[-1] < 1 << 16
    # A bitmap of 2^32 rows with one container, an array of u16.
    bitmap = pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16) + pack(f"<{len(values)}H", *values)
    data = pack("<IqI", 1681511377, 1, 0) + bitmap
    size = len(data)
    data += bytes(-size % 4)
    text = "".join(_z85(int.from_bytes(data[i : i + 4], "big")) for i in range(0, len(data), 4))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size, "cardinality": len(values)}


def _z85(number: int) -> str:
    return "".join(_DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
