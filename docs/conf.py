"""Configure Sphinx for ``make docs``: Markdown with MyST, the reference from docstrings; a warning is an error."""

from __future__ import annotations

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from fyrehose import __version__

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


def setup(app: Sphinx) -> None:
    """Show Mermaid drawings as text, because only GitHub renders them."""
    app.add_lexer("mermaid", TextLexer)
