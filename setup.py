"""Build the native kernels, and describe the package: what setup.cfg cannot declare.

Each kernel is optional: without a C compiler the build warns, and the pure-Python kernels are used.  With
``FYREHOSE_PURE=1`` none is built, so that the wheel is one for every machine.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("fyrehose", "kernels", "native")
#: The only one outside of the kernels, because it uses pyzmq; its docstring says how.
ZEROMQ = Path("fyrehose", "protocols", "eventbus", "zeromq.pyx")

#: The address of the repository, such as https://example.org/fyrehose; empty: it has none.  With an address, the links
#: of the README lead there, and a package index shows it; without one, the README on an index is text without them.
ADDRESS = ""
#: A link or a picture in Markdown that leads to a file of the repository.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def description(readme, address):
    """Return the README for a package index, which has none of the files that the README links to."""

    def link(found):
        picture, text, path = found.groups()
        if address:
            return f"{picture}[{text}]({address}/{'raw' if picture else 'blob'}/main/{path})"
        return "" if picture else text

    text = re.sub(r"\n{3,}", "\n\n", _LINK.sub(link, readme))
    return text if address else f"{text}\nThe pages that this text names are in `docs/` of the source distribution.\n"


if __name__ == "__main__":
    setup(
        long_description=description(Path("README.md").read_text(encoding="utf-8"), ADDRESS),
        project_urls={"Source": ADDRESS, "Changes": f"{ADDRESS}/blob/main/NEWS.md"} if ADDRESS else {},
        ext_modules=[]
        if os.environ.get("FYREHOSE_PURE") == "1"
        else [
            Extension(
                ".".join(source.with_suffix("").parts),
                [str(source)],
                depends=[str(shared) for shared in sorted(NATIVE.glob("*.pxd"))],
                extra_compile_args=["-O3", "-g0"],  # Symbols for a debugger are four fifths of a kernel.
                optional=True,
            )
            for source in [*sorted(NATIVE.glob("*.pyx")), ZEROMQ]
        ],
    )
