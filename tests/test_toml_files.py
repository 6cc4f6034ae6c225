"""Read TOML files, and say where a mistake is."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from fyrehose.errors import ConfigError
from fyrehose.options import count, duration, option
from fyrehose.toml_files import Mistake, inside, key, line_of, read, scalar, structured, text, texts, truth


@attrs.frozen(kw_only=True)
class Settings:
    most: int = option(5, count, "a number", least=1)


@attrs.frozen(kw_only=True)
class Window:
    length: float = key(scalar(duration), expected="a duration")
    names: tuple[str, ...] = key(texts, default=())
    closed: bool = key(truth, default=False)

    def __attrs_post_init__(self) -> None:
        if self.closed and not self.names:
            raise Mistake("a closed window needs names", key="closed")


@attrs.frozen(kw_only=True)
class File:
    title: str = key(text, default="")
    window: list[Window] = key(default=attrs.Factory(list), expected="tables named [[window]]", shown="[[window]]")
    first: Window | None = key(default=None)
    option: dict[str, Settings] = key(default=attrs.Factory(dict), shown="[option.NAME]")

    def checked(self, folder: Path) -> tuple[File, Path]:
        if len(self.window) > 2:
            with inside("window", 2):
                raise Mistake("there are at most two")
        return self, folder


def test_file_becomes_an_instance_of_its_class(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('title = "t"\n[[window]]\nlength = "1m"\nnames = "a"\n[option.x]\nmost = 7\n[option.y]\n')
    found, folder = read("--file", path, File, File.checked)
    assert found == File(
        title="t", window=[Window(length=60.0, names=("a",))], option={"x": Settings(most=7), "y": Settings()}
    )
    assert folder == tmp_path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("titel = 1", ", line 1: unknown key 'titel'; did you mean title?"),
        ("other = 1", ", line 1: unknown key 'other'; expected title, [[window]], first, [option.NAME]"),
        ("title = 1", ", line 1: title is 1; expected text in quotes"),
        ("window = 1", ", line 1: window is 1; expected tables named [[window]]"),
        ("window = [1]", ", line 1: window is a list; expected tables named [[window]]"),
        ("window = [{length = 1}, 1]", ", line 1: window is a list; expected tables named [[window]]"),
        ("option = 1", ", line 1: option is 1; expected a table"),
        ("[option]\nx = 1", ", line 2, in [option]: x is 1; expected a table"),
        ("[option.x]\nmost = 0", ", line 2, in [option.x]: most must be at least 1, not 0"),
        ("[option.'x y']\nmost = 'a'", ", line 2, in [option.'x y']: most is 'a'; expected a whole number"),
        ("[[window]]", ", line 1, in [[window]] table 1: length is missing; expected a duration"),
        ("[first]", ", line 1, in [first]: length is missing; expected a duration"),
        ("first = 1", ", line 1: first is 1; expected a table"),
        ("[first]\nlength = 1\nclosed = true", ", line 3, in [first]: a closed window needs names"),
        ("[[window]]\nlength = 1\n[[window]]\nlength = true", ", line 4, in [[window]] table 2: length is true; exp"),
        ("[[window]]\nlength = 1\nnames = ['a', '']", ", line 3, in [[window]] table 1: names is ['a', '']; expected"),
        ("[[window]]\nlength = 1\nclosed = 'no'", ", line 3, in [[window]] table 1: closed is 'no'; expected true or "),
        ("[[window]]\nlength = 1\nclosed = true", ", line 3, in [[window]] table 1: a closed window needs names"),
        ("[[window]]\nlength = 1\n" * 3, ", line 5, in [[window]] table 3: there are at most two"),
        ("[[window]]\nlenth = 1", ", line 2, in [[window]] table 1: unknown key 'lenth'; did you mean length?"),
        ("title", ": not TOML: "),
    ],
)
def test_error_says_file_line_table_key_value_and_expectation(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        read("--file", path, File, File.checked)
    assert str(raised.value).startswith(f"invalid --file {path}{said}")
    assert "\n" not in str(raised.value)


def test_error_of_a_converter_that_is_no_mistake_of_the_file_is_not_hidden() -> None:
    @attrs.frozen
    class Broken:
        value: str = key(lambda value: value.missing, default="")

    with pytest.raises(AttributeError, match="missing"):
        structured(Broken, {"value": "x"})


def test_line_of_a_key_in_another_table_is_not_found() -> None:
    text = "a = 1\n[x]\na = 2\n[[y.'z.z']]\n[[y.'z.z']]\nb.c = 3\n"
    assert line_of(text, ("x", "a")) == 3
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("y", "z.z", 1, "b", "c")) == 6
    assert line_of(text, ("y", "z.z", 0, "d")) == 4
    assert line_of(text, ("nothing",)) is None
