"""Print the oldest version of each package that setup.cfg allows, as constraints for pip: ``make oldest``.

Twisted[tls] >= 26.4  ->  twisted==26.4

The extras with which Fyrehose is developed are left out: only we install them, in their newest versions.
"""

from __future__ import annotations

import sys
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement

#: Extras for the development of Fyrehose.
OF_DEVELOPMENT = ("docs", "test", "release", "fuzz")
SETUP = Path(__file__).parents[1] / "setup.cfg"


def constraints(text: str) -> dict[str, str]:
    """Return the oldest version that the requirements in a ``setup.cfg`` allow, by the name of the package.

    :raises SystemExit: a requirement has no lower bound
    """
    read = ConfigParser()
    read.read_string(text)
    extras = read["options.extras_require"]
    lines = [read["options"]["install_requires"], *(extras[name] for name in extras if name not in OF_DEVELOPMENT)]
    found: dict[str, str] = {}
    for line in "\n".join(lines).splitlines():
        if not line or line.startswith(("#", "fyrehose[")):
            continue
        requirement = Requirement(line)
        lower = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        if not lower:
            sys.exit(f"setup.cfg: {line!r} has no lower bound; name the oldest version that works")
        found[requirement.name.lower()] = lower[0]
    return found


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in constraints(SETUP.read_text()).items()))
