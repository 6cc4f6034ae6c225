"""Test completion in real shells: type a line in a terminal, press TAB, and let the shell print the line."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

PATIENCE = 60.0
#: Names that a peer may choose; a careless completion in bash would run the last one.
NAMES = ("logs.web", "jobs:a b", "one,two", "run$(touch pwned)")

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
        deadline = time.monotonic() + PATIENCE
        while not said.exists() or not said.read_text():
            assert time.monotonic() < deadline, f"{self.shell} does not write its line"
            time.sleep(0.05)
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


def post(port: int, stream: str) -> None:
    url = f"http://127.0.0.1:{port}/streams/{quote(stream, safe='')}"
    urllib.request.urlopen(urllib.request.Request(url, b"x", method="POST"), timeout=PATIENCE).close()


@SHELLS
def test_shells_complete_commands_and_names_that_the_server_knows(
    shell: str, terminal: Callable[..., Terminal], start: Any
) -> None:
    server = start("--listen", "http=tcp:0:interface=127.0.0.1", "--listen", "admin=tcp:0:interface=127.0.0.1")
    http, admin = server.port("http"), server.port("admin")
    for name in NAMES:
        post(http, name)
    put = f"http://127.0.0.1:{http}/subscriptions/billing"
    body = b'{"stream": "logs.web", "shared": true}'
    urllib.request.urlopen(urllib.request.Request(put, body, method="PUT"), timeout=PATIENCE).close()
    # On a busy machine the server may answer later than a user would wait.
    typing = terminal(shell, FYREHOSE_COMPLETION_WAIT="60s")
    assert typing.completed("fyrehose strea") == "fyrehose streams "
    assert typing.completed("fyrehose streams ret") == "fyrehose streams retire "
    assert typing.completed("fyrehose tail --form") == "fyrehose tail --format "
    assert typing.completed("fyrehose serve --durabil") == "fyrehose serve --durability "
    tail = f"fyrehose tail --from 127.0.0.1:{http} --protocol http --stream "
    assert typing.completed(f"{tail}lo") == f"{tail}logs.web "
    assert typing.completed(f"{tail}one") == f"{tail}one,two "
    assert typing.completed(f"{tail}jobs:a") == f"{tail}jobs:a\\ b "
    assert typing.completed(f"{tail}'jobs:a") == f"{tail}'jobs:a b' "
    retire = f"fyrehose streams retire --url http://127.0.0.1:{http} "
    assert typing.completed(f"{retire}ru").rstrip() in (
        f"{retire}run\\$\\(touch\\ pwned\\)",
        f"{retire}run$\\(touch\\ pwned\\)",
        f"{retire}'run$(touch pwned)'",
    )
    listed = f"fyrehose streams --url http://127.0.0.1:{admin} "
    assert typing.completed(f"{listed}lo") == f"{listed}logs.web "
    show = f"fyrehose subscriptions show --url http://127.0.0.1:{http} "
    assert typing.completed(f"{show}bi") == f"{show}billing "
    dump = f"fyrehose journal dump {server.directory}/data --stream "
    assert typing.completed(f"{dump}lo") == f"{dump}logs.web "
    assert not list(typing.folder.glob("pwned"))


@SHELLS
def test_completion_leaves_the_line_unchanged_if_the_server_does_not_answer(
    shell: str, terminal: Callable[..., Terminal]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = f"fyrehose tail --protocol http --from 127.0.0.1:{silent.getsockname()[1]} --stream lo"
        assert terminal(shell).completed(line) == line
