"""Build the native kernels, and describe the package: what setup.cfg cannot declare.

Each kernel is optional: without a C compiler the build warns, and the pure-Python kernels are used.  With
``FYREHOSE_PURE=1`` none is built, so that the wheel is one for every machine.

With ``FYREHOSE_SPLIT=1`` the wheel depends on fyrehose-protocols instead of bringing its modules: that is how a release
is built.  A checkout, and the sdist, bring everything, so that they need no other distribution.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

NATIVE = Path("fyrehose", "kernels", "native")

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
    return text if address else f"{text}\n`fyrehose help` prints the pages that this text names.\n"


class Split(Distribution):
    """A distribution that depends on fyrehose-protocols of the same version."""

    def parse_config_files(self, *args, **options):
        super().parse_config_files(*args, **options)
        requirement = f"fyrehose-protocols=={self.metadata.version}"
        self.install_requires = [*self.install_requires, requirement]
        self.metadata.install_requires = [*self.metadata.install_requires, requirement]


class WithPages(build_py):
    """Copy the pages of the documentation into the package, where `fyrehose help` finds them."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for page in [*Path("docs").glob("*.md"), *Path("docs").glob("protocols/*.md")]:
                target = Path(self.build_lib, "fyrehose", page)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(page), str(target))


class WithoutProtocols(WithPages):
    """Leave out the files of fyrehose-protocols."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [
            each for each in found if (package if each[1] == "__init__" else f"{package}.{each[1]}") not in others()
        ]

    def find_data_files(self, package, src_dir):
        return [name for name in super().find_data_files(package, src_dir) if Path(name).name != "py.typed"]


def others():
    """Return the names of the modules of fyrehose-protocols."""
    tools = str(Path(__file__).parent / "tools")
    if tools not in sys.path:
        sys.path.append(tools)
    from protocols import modules

    return modules()


if __name__ == "__main__":
    split = os.environ.get("FYREHOSE_SPLIT") == "1"
    setup(
        distclass=Split if split else Distribution,
        cmdclass={"build_py": WithoutProtocols if split else WithPages},
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
            for source in sorted(NATIVE.glob("*.pyx"))
        ],
    )
