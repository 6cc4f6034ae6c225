"""Test what a release contains besides the package: its news, and its description on a package index.

``make dist`` builds the files themselves, and uses them in empty environments.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from configparser import ConfigParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script(path: str) -> ModuleType:
    """Import a script of the checkout as a module, without running its main program."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


README = (ROOT / "README.md").read_text()


def test_the_oldest_versions_are_the_lower_bounds_of_setup_cfg() -> None:
    text = """[options]
install_requires =
    # a reason >= 9
    Twisted[tls] >= 26.4
[options.extras_require]
spark =
    pandas >= 2.2, < 3
    isal >= 1.6; platform_machine == "x86_64"
test =
    pytest >= 9.0.3
all =
    fyrehose[spark]
"""
    oldest = script("tools/oldest.py")
    assert oldest.constraints(text) == {"twisted": "26.4", "pandas": "2.2", "isal": "1.6"}
    with pytest.raises(SystemExit, match="'numpy < 3' has no lower bound"):
        oldest.constraints(text.replace("pandas >= 2.2, < 3", "numpy < 3"))
    assert {"attrs", "pyopenssl", "pyspark"} <= oldest.constraints((ROOT / "setup.cfg").read_text()).keys()


def test_the_description_has_no_repository_links_without_an_address() -> None:
    text = script("setup.py").description(README, "")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "![" not in text
    assert "- A tour: twenty minutes" in text
    assert text.endswith("`fyrehose help` prints the pages that this text names.\n")


def test_links_and_pictures_of_the_description_lead_to_the_given_address() -> None:
    text = script("setup.py").description(README, "https://example.org/fyrehose")
    assert "[A tour](https://example.org/fyrehose/blob/main/docs/tour.md)" in text
    assert "](https://example.org/fyrehose/raw/main/docs/images/page-light.png)" in text
    assert "](docs/" not in text


def test_links_of_the_readme_are_files() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    fragments = tmp_path / "newsfragments" / "figg"
    fragments.mkdir(parents=True)
    fragments.joinpath("+a.feature.md").write_text("It counts.\n")
    fragments.joinpath("+b.bugfix.md").write_text("It counts to ten, not to nine.\n")
    return tmp_path


def test_the_news_of_a_first_release_have_no_fixes_and_can_be_written_again(checkout: Path) -> None:
    news = script("tools/news.py")
    news.write(checkout, "1.0.0rc1")
    first = (checkout / "NEWS.md").read_text()
    assert first.startswith("<!-- towncrier release notes start -->\n\n# Fyrehose 1.0.0rc1 (")
    assert "## Figg\n\n### Features\n\n- It counts." in first
    assert "nine" not in first
    assert news.write(checkout, "1.0.0rc1").endswith("1 fixes of what was never released are left out")
    assert (checkout / "NEWS.md").read_text() == first
    assert len(list(checkout.joinpath("newsfragments", "figg").iterdir())) == 2, "other branches need them"


def test_the_news_of_a_later_release_stand_above_the_earlier_ones(checkout: Path) -> None:
    news = script("tools/news.py")
    news.write(checkout, "1.0.0")
    checkout.joinpath("newsfragments", "figg", "+a.feature.md").unlink()
    news.write(checkout, "1.0.1")
    text = (checkout / "NEWS.md").read_text()
    assert re.findall(r"^# Fyrehose (\S+)", text, re.MULTILINE) == ["1.0.1", "1.0.0"]
    assert text.index("nine") < text.index("It counts.")


def test_every_fragment_is_in_the_folder_of_its_part() -> None:
    """Towncrier ignores fragments in other folders without a warning."""
    sections = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["section"]
    fragments = [path.relative_to(ROOT / "newsfragments") for path in ROOT.joinpath("newsfragments").rglob("*.md")]
    assert fragments
    lost = [str(path) for path in fragments if str(path.parent) not in {each["path"] for each in sections}]
    assert not lost, "move them to a folder that pyproject.toml names"


def test_the_release_supports_the_pythons_that_it_names() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    classifiers = setup["metadata"]["classifiers"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", classifiers)
    assert set(named) <= set(script("tools/dist.py").VERSIONS), "make dist tries them"
    assert setup["options"]["python_requires"] == f">={named[0]}"


def test_every_file_in_git_is_in_the_sdist_or_left_out_on_purpose() -> None:
    if not (ROOT / ".git").exists():
        return  # the tests run from an sdist
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    rules = (ROOT / "MANIFEST.in").read_text()
    folders = tuple(f"{name}/" for name in [*re.findall(r"^graft (\S+)$", rules, re.MULTILINE), "fyrehose"])
    files = {name for line in re.findall(r"^include (.*)$", rules, re.MULTILINE) for name in line.split()}
    always = {"README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    outside = {name for name in known.stdout.split("\0") if name and not name.startswith(folders)}
    assert outside - files - always == {".gitignore"}
