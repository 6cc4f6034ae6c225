"""Find the modules of ``fyrehose-protocols``, the codecs without the server, and write its source tree.

    python tools/protocols.py DIRECTORY        then: pip install DIRECTORY, or python -m build DIRECTORY

The distribution is the sessions and frames of five protocols, the records, and whatever they import: their own files,
under their own names.  ``protocols/`` has its metadata.  The wheels of a release of Fyrehose leave these modules out,
and depend on it, so that each file belongs to one distribution; see "The codecs alone" in docs/embedding.md.
"""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from import_graph import MODULES, ROOT, ancestors, reached

#: The packages that programs import; without HTTP, because every language has a codec for it.
ROOTS = ("fyrehose.records", "fyrehose.sessions", "fyrehose.protocols.*.frames", "fyrehose.protocols.*session")
ROOTS += ("fyrehose.protocols.relink.names",)
#: Not included, because the wheel of the server brings the compiled kernels; codecs use them if they are installed.
SERVER = ("fyrehose.protocols.http.*", "fyrehose.kernels.native")
#: The files beside the modules, relative to the root of the repository.
OTHER = ("fyrehose/py.typed", "LICENSE")


@cache
def modules() -> frozenset[str]:
    """Return the names of the modules of fyrehose-protocols, packages included."""
    roots = {name for name in MODULES if any(fnmatch(name, pattern) for pattern in ROOTS)}
    roots -= {name for name in roots if any(fnmatch(name, pattern) for pattern in SERVER)}
    found = {other for name in roots for other in (name, *ancestors(name), *reached(name))} & set(MODULES)
    return frozenset(found - set(SERVER))


def write(directory: Path) -> list[Path]:
    """Write the source tree of fyrehose-protocols into *directory*; return the files, relative to it."""
    files = [MODULES[name].relative_to(ROOT) for name in sorted(modules())]
    files += [Path(name) for name in OTHER]
    for path in files:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, directory / path)
    for path in sorted((ROOT / "protocols").iterdir()):
        shutil.copy(path, directory / path.name)
        files.append(Path(path.name))
    return files


if __name__ == "__main__":
    print(f"{len(write(Path(sys.argv[1])))} files in {sys.argv[1]}")
