"""Configure Sphinx for ``make docs``: Markdown with MyST, the reference from docstrings; a warning is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from fyrehose import __version__

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import diagrams

TITLE = re.compile(r"^title: (.*)$", re.MULTILINE)

project = "Fyrehose"
author = "the authors of Fyrehose"
project_copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "examples"]
nitpicky = True

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "undoc-members": False, "exclude-members": "log"}
#: Docstrings use single backquotes for code, not for links.
default_role = "code"
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"Fyrehose {version}"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False


class ShowDiagrams(SphinxTransform):
    """Show the picture of each Mermaid diagram in its place; tools/diagrams.py has drawn it."""

    default_priority = 200

    def apply(self) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                title = TITLE.search(block.astext())
                path = f"/{diagrams.picture(block.astext())}"
                block.replace_self(nodes.image(uri=path, alt=title[1] if title else "a state diagram"))


def setup(app: Sphinx) -> None:
    app.add_transform(ShowDiagrams)
