"""Programs of Fyrehose as forks of one process that has imported them: a double of :class:`subprocess.Popen`.

A server or a command imports for half a second before it begins, and the tests start thousands of them.  Here, one
process for each worker of pytest imports everything once.  For each program, it forks a process that runs the program
as the interpreter would have run it: with the arguments, environment, directory and standard streams that it was given.

Only ``fyrehose``, ``twistd`` and the makers of load of ``fyrehose bench`` are forked, and the programs of
tests/verification/torture; and only if nothing in the environment changes what Python imports.  What ``fyrehose bench``
and the torture programs start are forks, too.  Tests about the start or the end of a process take the fixture
``real_programs`` of tests/conftest.py.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import inspect
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

#: The programs that are forked, and the function that each of them calls.
PROGRAMS = {"fyrehose": ("fyrehose.cli", "main"), "twistd": ("twisted.scripts.twistd", "run")}
ROOT = Path(__file__).parents[2]
#: The directory of programs in Python that are forked, too.
TORTURE = ROOT / "tests" / "verification" / "torture"
#: The modules that make load in a process of their own.
MAKERS = ("fyrehose.bench.maker", "benchmarks.maker")
#: Modules of others that programs import while they run.
LATE = ("twisted.internet.epollreactor", "twisted.scripts._twistd_unix", "nats.aio.client", "prometheus_client")
#: Variables that the loader, a library, Python or a module reads at the start: with other values, nothing is forked.
START = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "FYREHOSE_PURE", "COVERAGE_")
#: The option of prctl(2) by which orphans become children of the calling process, not of the first one.
PR_SET_CHILD_SUBREAPER = 36
#: Largest request in bytes; a socket pair takes no larger message.
LARGEST = 128 << 10
RealPopen = subprocess.Popen


def starts_alike(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables of *environment* that matter at the start, but the path."""
    return {name: value for name, value in environment if name.startswith(START) and name != "PYTHONPATH"}


class Parent:
    """The process that forks programs, as the tests see it; it ends when this process ends.

    :param imported: whether this process has imported everything, so that the other one can be a fork of it
    """

    def __init__(self, imported: bool = False) -> None:
        self._lock = threading.Lock()
        self._prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.variables = starts_alike(os.environ.items())
        if not imported:
            _begin(theirs.fileno())
        elif os.fork() == 0:
            self._socket.close()
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            serve(theirs.detach())()
        theirs.close()
        #: the file of each package and module that it has imported
        self.files: dict[str, str] = json.loads(self._socket.recv(LARGEST))

    def fork(self, words: list[str], cwd: str, environment: dict[str, str], descriptors: tuple[int, int, int]) -> int:
        """Start a program as a child of this process; return its process id."""
        request = json.dumps([words, cwd, environment]).encode()
        with self._lock:
            assert self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            try:
                socket.send_fds(self._socket, [request], descriptors)
                # The answer arrives when the program's parent has ended, so that this process has become its parent.
                return int(self._socket.recv(LARGEST))
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def has_imported_for(self, path: str) -> bool:
        """Return whether a process with the variable PYTHONPATH would import the same modules as the parent."""
        for entry in map(Path, filter(None, path.split(os.pathsep))):
            for name, file in self.files.items():
                for there in (entry / name / "__init__.py", entry / f"{name}.py"):
                    if there.exists() and not there.samefile(file):
                        return False
        return True


def _begin(descriptor: int) -> None:
    """Start a process that imports everything, and serves requests of the socket *descriptor*."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = (
        f"import sys; sys.path[:1] = [{str(ROOT)!r}]\n"
        "from tests.doubles.programs import import_everything, serve\n"
        f"import_everything(); serve({descriptor})()"
    )
    words = [sys.executable, "-c", code]
    STARTED.append(RealPopen(words, pass_fds=[descriptor], env=environment, stdin=subprocess.DEVNULL))


#: The process that this one has started; without a reference, Popen would warn that nobody waits for it.
STARTED: list[RealPopen[bytes]] = []
PARENTS: list[Parent] = []


def parent(imported: bool = False) -> Parent:
    """Return the process that forks the programs of this process, which is started when it is first needed."""
    if not PARENTS:
        PARENTS.append(Parent(imported))
    return PARENTS[0]


class ForkedPopen(RealPopen):  # type: ignore[type-arg]
    """A Popen that forks the programs of Fyrehose, and starts all others."""

    def _execute_child(self, *arguments: Any) -> None:
        """Start the program, and close the descriptors that only it needs; the name is that of CPython."""
        start: Callable[..., None] = RealPopen._execute_child  # type: ignore[attr-defined]
        given = inspect.signature(start).bind(self, *arguments).arguments
        words = given["args"]
        words = [words] if isinstance(words, (str, os.PathLike)) else list(words)
        environment = dict(os.environ if given["env"] is None else given["env"])
        if not _may_be_forked([os.fspath(word) for word in words], given, environment):
            start(self, *arguments)
            return
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        descriptors = tuple(
            own if pipe == -1 else pipe for own, pipe in zip((0, 1, 2), (pipes[0], pipes[3], pipes[5]), strict=True)
        )
        cwd = os.fspath(given["cwd"] or os.getcwd())  # noqa: PTH109
        self.pid = parent().fork([str(word) for word in words], cwd, environment, descriptors)  # type: ignore[arg-type]
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _may_be_forked(words: list[Any], given: dict[str, Any], environment: dict[Any, Any]) -> bool:
    """Return whether a fork does not differ from the process that Popen would start."""
    plain = not any(given[name] for name in ("executable", "preexec_fn", "pass_fds", "shell", "start_new_session"))
    plain = plain and given["close_fds"] and all(given[name] is None for name in ("gid", "gids", "uid"))
    plain = plain and given["umask"] == -1 and given["process_group"] == -1
    if not plain or _main_of(words) is None:
        return False
    texts = [*words, *environment, *environment.values()]
    if not all(isinstance(text, str) for text in texts) or sum(map(len, texts)) > LARGEST // 8:
        return False
    there = parent()
    return there.variables == starts_alike(environment.items()) and there.has_imported_for(
        environment.get("PYTHONPATH", "")
    )


def _main_of(words: list[Any]) -> Callable[[], object] | None:
    """Return the function that runs the program of a command line; None if it is not forked."""
    program = Path(os.fsdecode(words[0]))
    if program.parent != Path(sys.executable).parent:
        return None
    if program.name in PROGRAMS:
        module, function = PROGRAMS[program.name]
        main = partial(_call, module, function)
        return partial(_with_forks, main) if words[1:2] == ["bench"] else main
    if words[0] != sys.executable or len(words) < 2:
        return None
    if Path(os.fsdecode(words[1])).parent == TORTURE:
        return partial(_with_forks, partial(_run, runpy.run_path, words[1]))
    if words[1] == "-m" and words[2:] and words[2] in MAKERS:
        return partial(_run, runpy.run_module, words[2])
    return None


def _call(module: str, function: str) -> object:
    return getattr(import_module(module), function)()


def _run(run: Callable[..., object], name: str) -> None:
    """Run a module by its path or its name; its variables, which runpy returns, are no exit status."""
    run(name, run_name="__main__")


def _with_forks(main: Callable[[], object]) -> object:
    """Run a program whose own servers and commands are forks of this process."""
    parent(imported=True)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    return main()


def serve(descriptor: int) -> Callable[[], object]:
    """Fork a process for each request; in that process, return the function to call."""
    with socket.socket(fileno=descriptor) as requests:
        files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
        requests.send(json.dumps({name: file for name, file in files.items() if "." not in name}).encode())
        while True:
            request, descriptors = _received(requests)
            if not request:
                os._exit(0)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                program = os.fork()
                if program == 0:
                    break
                os.write(writing, str(program).encode())
                os._exit(0)
            os.close(writing)
            os.waitpid(child, 0)
            requests.send(os.read(reading, 100))
            for each in (reading, *descriptors):
                os.close(each)
        words, cwd, environment = json.loads(request)
        for standard, each in enumerate(descriptors):
            os.dup2(each, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    return _become(words, cwd, environment)


def _received(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next request, and the descriptors that came with it."""
    request, ancillary, _, _ = requests.recvmsg(LARGEST, socket.CMSG_LEN(3 * array.array("i").itemsize))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return request, list(descriptors)


def import_everything() -> None:
    """Import the modules of Fyrehose, without those of Spark, and without a reactor."""
    import fyrehose

    for module in pkgutil.walk_packages(fyrehose.__path__, "fyrehose."):
        if "spark" not in module.name and not module.name.endswith("__main__") and module.name not in MAKERS:
            import_module(module.name)
    for name in LATE:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "each program installs its own"
    gc.collect()
    gc.freeze()


def _become(words: list[str], cwd: str, environment: dict[str, str]) -> Callable[[], object]:
    """Make this process as the interpreter would have started it; return the function of the program."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    main = _main_of(words)
    assert main is not None
    sys.argv[:] = words[1:] if words[0] == sys.executable else words
    before = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = [cwd if sys.argv[0] == "-m" else str(Path(sys.argv[0]).parent), *before]
    for name, mode in (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")):
        old = getattr(sys, name)
        binary = open(old.fileno(), mode, closefd=False)  # noqa: SIM115
        lines = name == "stderr" or binary.isatty()
        text = io.TextIOWrapper(binary, old.encoding, old.errors, newline="\n", line_buffering=lines)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    return partial(_ended, main)


def _ended(main: Callable[[], object]) -> None:
    """Run a program, and end as the interpreter does, but without freeing each object: there are too many."""
    status: object = 0
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        status = 1
    if not (status is None or isinstance(status, int)):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are not daemons
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120
    sys.stderr.flush()
    os._exit((status or 0) & 255)
