"""Test completion in real shells: type a line in a terminal, press TAB, and let the shell print the line."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.live.conftest import until

pytestmark = pytest.mark.live


@attrs.define
class Terminal:
    """A shell in a terminal; Ctrl-G writes the line that is being typed to a file."""

    shell: str
    folder: Path
    more: dict[str, str]
    process: subprocess.Popen[bytes] = attrs.field(init=False)
    keys: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        said = self.folder / "said"
        install = {
            "bash": f'bind -x \'"\\C-g": printf %s "$READLINE_LINE" > {said}\'',
            "zsh": f"autoload -Uz compinit; compinit -u -D\nsay() {{ print -rn -- $BUFFER > {said} }}\n"
            "zle -N say; bindkey '^G' say",
            "fish": f"bind \\cg 'commandline > {said}'",
        }[self.shell]
        source = (
            "fyrehose completion fish | source"
            if self.shell == "fish"
            else (f'eval "$(fyrehose completion {self.shell})"')
        )
        script = self.folder / (".zshrc" if self.shell == "zsh" else "rc")
        script.write_text(f"{install}\n{source}\n")
        words = {
            "bash": ["bash", "--noprofile", "--rcfile", str(script), "-i"],
            "zsh": ["zsh", "-d", "-i"],
            "fish": ["fish", "--no-config", "--interactive", "--init-command", f"source {script}"],
        }[self.shell]
        self.keys, theirs = pty.openpty()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {
            **os.environ,
            **self.more,
            "PATH": path,
            "TERM": "xterm",
            "ZDOTDIR": str(self.folder),
            "HOME": str(self.folder),
        }
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=self.folder, env=environment
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Read the shell's output, so that it never waits for the terminal."""
        try:
            while os.read(self.keys, 65_536):
                pass
        except OSError:
            return  # the shell has ended

    def completed(self, line: str) -> str:
        """Type *line* and TAB; return the completed line."""
        said = self.folder / "said"
        said.unlink(missing_ok=True)
        os.write(self.keys, f"{line}\t\x07".encode())
        until(lambda: said.exists() and said.read_text(), f"{self.shell} does not write its line")
        os.write(self.keys, b"\x15")  # Ctrl-U empties the line
        return said.read_text().rstrip("\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keys)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts a shell with additional environment variables."""
    made: list[Terminal] = []

    def start_shell(shell: str, **more: str) -> Terminal:
        if shutil.which(shell) is None:
            pytest.skip(f"a program of others is not installed: {shell}")
        folder = tmp_path / "home"
        folder.mkdir()
        made.append(Terminal(shell, folder, more))
        return made[-1]

    yield start_shell
    for each in made:
        each.close()


SHELLS = pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])


@SHELLS
def test_shells_complete_commands_options_and_values(shell: str, terminal: Callable[..., Terminal]) -> None:
    typing = terminal(shell)
    assert typing.completed("fyrehose strea") == "fyrehose streams "
    assert typing.completed("fyrehose streams ret") == "fyrehose streams retire "
    assert typing.completed("fyrehose streams --lim") == "fyrehose streams --limit "
    assert typing.completed("fyrehose tail --form") == "fyrehose tail --format "
    assert typing.completed("fyrehose tail --protocol fi") == "fyrehose tail --protocol figg "
    assert typing.completed("fyrehose serve --durabil") == "fyrehose serve --durability "
    listen = "fyrehose serve --listen figg=tcp:8119:interface=127.0.0.1"
    assert typing.completed("fyrehose serve --listen figg=tcp:81").replace("\\", "").rstrip() == listen
