"""The names in ``__all__`` are importable, documented, and cheap to import.

If a package of an extra is missing, the error names the command that installs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fyrehose
from fyrehose import imports
from fyrehose.errors import MissingExtra
from fyrehose.imports import Extra, lazily

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in ROOT.joinpath("fyrehose").rglob("__init__.py")
    if "__all__ = " in path.read_text()
)
MISSING = Extra("nice", "nice-package", "nothing_of_this_name")
ALL = [each for each in vars(imports).values() if isinstance(each, Extra)]
#: Packages whose ``__all__`` is meant for Fyrehose itself.
INTERNAL = {"fyrehose.cli", "fyrehose.kernels"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("package", sorted({*PACKAGES} - {"fyrehose.spark"}))
def test_public_names_exist_and_have_docstrings(package: str) -> None:
    module: Any = import_module(package)
    for name in module.__all__:
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{package}.{name}")
        assert package in INTERNAL or value.__doc__, name
        assert name in dir(module)


def test_unknown_names_are_reported_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'fyrehose' has no attribute 'nothing'"):
        fyrehose.nothing  # noqa: B018
    assert not hasattr(import_module("fyrehose.net"), "FiggClient")


def test_importing_a_server_name_from_the_codecs_package_names_the_server() -> None:
    module = import_module("fyrehose.protocols.figg")
    import_name, _ = lazily(module.__name__, {"nowhere": "FiggFactory", "nowhere.below": "FiggProtocol"})
    for name in ("FiggFactory", "FiggProtocol"):
        why = rf"fyrehose\.protocols\.figg\.{name} belongs to the server: pip install fyrehose"
        with pytest.raises(ImportError, match=why):
            import_name(name)


def test_a_missing_package_is_named_as_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "lonely"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("needs.py").write_text("import lonely_requirement\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_name, _ = lazily("lonely", {"needs": "Name"})
    with pytest.raises(ModuleNotFoundError, match="No module named 'lonely_requirement'"):
        import_name("Name")


def test_packages_are_imported_without_twisted_or_an_extra() -> None:
    packages = sorted({*PACKAGES} - {"fyrehose.cli"})
    heavy = {"twisted", "nacl", "pyspark", "pyarrow", "cryptography"}
    loaded = run(f"import sys, {', '.join(packages)}\nprint(sorted({heavy!r} & set(sys.modules)))")
    assert loaded == "[]\n"


def test_the_command_line_starts_without_the_code_of_a_server() -> None:
    heavy = {"fyrehose.server.config", "fyrehose.broker.broker", "twisted.internet.endpoints", "OpenSSL"}
    assert run(f"import sys, fyrehose.cli.command\nprint(sorted({heavy!r} & set(sys.modules)))") == "[]\n"


def test_a_command_starts_without_the_modules_of_the_others() -> None:
    code = "from fyrehose.cli import main\nmain(['--version'], standalone_mode=False)\nprint(sorted(sys.modules))"
    loaded = run(f"import sys\n{code}")
    for module in ("fyrehose.cli.journal.commands", "fyrehose.cli.cluster.commands", "rich", "twisted", "asyncio"):
        assert f"'{module}'" not in loaded, module
    assert "'fyrehose.cli.program'" in loaded


@pytest.mark.slow
def test_public_names_are_imported_without_a_reactor() -> None:
    packages = sorted({*PACKAGES} - {"fyrehose.spark"})
    stars = "\n".join(f"from {package} import *" for package in packages)
    heavy = {"twisted.internet.reactor", "nacl", "pyspark"}
    assert run(f"{stars}\nimport sys\nprint(sorted({heavy!r} & set(sys.modules)))") == "[]\n"


def test_the_reference_documents_every_public_name() -> None:
    page = ROOT.joinpath("docs", "reference.md").read_text()
    documented = set(re.findall(r"automodule:: (\S+)", page)) | {"fyrehose.interfaces"}
    assert {*PACKAGES} - INTERNAL <= documented
    for package in {*PACKAGES} - INTERNAL - {"fyrehose.spark"}:
        module: Any = import_module(package)
        modules = {
            f"{package}.{name}" for name in module.__all__ if (ROOT / package.replace(".", "/") / f"{name}.py").exists()
        }
        assert modules <= documented


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtra) as raised:
        MISSING.require("the bus")
    assert str(raised.value) == "the bus needs nice-package: pip install 'fyrehose[nice]'"


def test_an_installed_package_is_no_error() -> None:
    extra = Extra("any", "attrs", "attrs")
    assert extra.installed
    extra.require("everything")


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.package)
def test_the_extra_brings_the_package(each: Extra) -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    assert re.search(rf"^{each.package}\b", setup["options.extras_require"][each.name], re.MULTILINE)
    assert each.installed, "the tests have every extra"
