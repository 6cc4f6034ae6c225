"""Write NEWS.md from the fragments in newsfragments/: ``python tools/news.py VERSION``.

It may be repeated: the section of VERSION is replaced, and those of earlier releases stay.  The fragments stay, too.
The folder of a fragment is its part, a protocol for example; pyproject.toml lists them.  The news of a first release
have no fixes, because no user had the faults.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
START = "<!-- towncrier release notes start -->\n"


def earlier(news: str, version: str) -> list[str]:
    """Return the sections of *news* that are not of *version*."""
    sections = re.split(r"^(?=# Fyrehose )", news.partition(START)[2], flags=re.MULTILINE)
    return [section for section in sections if section.strip() and not section.startswith(f"# Fyrehose {version} ")]


def section(fragments: list[Path], version: str) -> str:
    """Return the section of *version*, made by towncrier."""
    with TemporaryDirectory() as folder:
        for fragment in fragments:
            copy = Path(folder, "newsfragments", fragment.parent.name, fragment.name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(fragment, copy)
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version]
        command += ["--config", str(ROOT / "pyproject.toml"), "--dir", folder]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(f"towncrier failed: {made.stderr.strip()}")
    return made.stdout.strip()


def write(root: Path, version: str) -> str:
    """Write the NEWS.md of the checkout *root*; return a line about it."""
    path = root / "NEWS.md"
    before = earlier(path.read_text(encoding="utf-8") if path.exists() else "", version)
    fragments = sorted(root.joinpath("newsfragments").glob("*/*.md"))
    told = [fragment for fragment in fragments if before or ".bugfix." not in fragment.name]
    sections = [section(told, version), *(text.strip() for text in before)]
    path.write_text(START + "\n" + "\n\n\n".join(sections) + "\n", encoding="utf-8")
    left_out = len(fragments) - len(told)
    return f"NEWS.md: {version}, {len(told)} fragments; {left_out} fixes of what was never released are left out"


if __name__ == "__main__":
    print(write(ROOT, sys.argv[1]))
