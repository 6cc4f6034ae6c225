"""Draw the Mermaid diagrams of the documentation as pictures: ``python tools/diagrams.py MERMAID``.

MERMAID is the file ``mermaid.min.js`` of Mermaid (MIT licence)::

    npm install --prefix build/mermaid --ignore-scripts mermaid@11.17.2
    python tools/diagrams.py build/mermaid/node_modules/mermaid/dist/mermaid.min.js

GitHub draws the blocks of the pages itself; Sphinx shows these pictures in their place (docs/conf.py), so that building
the documentation needs neither a browser nor a network.  The name of a picture is a digest of its block, so a picture
is never that of an older block: this draws what is missing, and removes what no block has.  It needs Chromium.
"""

from __future__ import annotations

import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
#: The pictures, relative to the documentation.
FOLDER = "images/diagrams"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DRAW = """
    const done = arguments[1];
    mermaid.initialize({startOnLoad: false, theme: "neutral", deterministicIds: true, fontFamily: "sans-serif",
                        state: {nodeSpacing: 90, rankSpacing: 70}});
    mermaid.render("diagram", arguments[0]).then((drawn) => done(drawn.svg), (error) => done(String(error)));
"""


def picture(source: str) -> str:
    """Return the path of the picture of the Mermaid diagram *source*, relative to the documentation."""
    return f"{FOLDER}/{sha256(source.strip().encode()).hexdigest()[:16]}.svg"


def diagrams(docs: Path) -> dict[str, str]:
    """Return the Mermaid diagrams of all pages in *docs*, by the path of their picture."""
    pages = (page.read_text(encoding="utf-8") for page in sorted(docs.rglob("*.md")))
    return {picture(source): source for page in pages for source in BLOCK.findall(page)}


def draw(sources: dict[str, str], mermaid: Path) -> None:
    """Draw *sources* with the script *mermaid* in a browser."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(word)
    page = mermaid.with_name("diagrams.html")
    page.write_text(f'<meta charset="utf-8"><script src="{mermaid.name}"></script><body></body>')
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser.get(page.resolve().as_uri())
        for path, source in sources.items():
            drawn = browser.execute_async_script(DRAW, source)
            if not drawn.startswith("<svg"):
                sys.exit(f"Mermaid cannot draw {path}: {drawn}\n{source}")
            # Pages may be dark, and the text of the picture is dark.
            drawn = drawn.replace('style="', 'style="background: white; ', 1)
            DOCS.joinpath(path).write_text(drawn + "\n", encoding="utf-8")
    finally:
        browser.quit()


def main(mermaid: Path) -> str:
    """Draw what is missing and remove what no block has; return a line about it."""
    wanted = diagrams(DOCS)
    DOCS.joinpath(FOLDER).mkdir(exist_ok=True)
    drawn = {f"{FOLDER}/{path.name}" for path in DOCS.joinpath(FOLDER).iterdir()}
    draw({path: source for path, source in wanted.items() if path not in drawn}, mermaid)
    for path in drawn - wanted.keys():
        DOCS.joinpath(path).unlink()
    return f"{len(wanted)} diagrams, {len(wanted.keys() - drawn)} drawn, {len(drawn - wanted.keys())} removed"


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
