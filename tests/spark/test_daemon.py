"""Python workers of a local session begin with little to import, and are forked before a thread starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.slow
def test_workers_import_the_installed_pyspark_and_search_no_jar(spark: Any) -> None:
    def files(number: int) -> list[str]:
        import pyspark

        return [str(pyspark.__file__), *sys.path, *sys.path_importer_cache]

    of_pyspark, *others = spark.sparkContext.parallelize([1], 1).map(files).first()
    assert "pyspark.zip" not in of_pyspark
    assert not [path for path in others if path.endswith(".jar")]


def test_daemon_of_workers_imports_nothing_that_starts_threads() -> None:
    code = "import sys, fyrehose.spark.daemon; print({'numpy', 'pyarrow', 'pandas'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
