"""Test the direction of imports between modules, and the folders of their tests.

An import under TYPE_CHECKING may go up within a package, where it names a class that runs later; everywhere else it
counts like any other import.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Modules that handle bytes, and know no sockets, clocks or tables.
SANS_IO = (
    "fyrehose.records",
    "fyrehose.errors",
    "fyrehose.options",
    "fyrehose.patterns",
    "fyrehose.sessions",
    "fyrehose.journal.format",
    "fyrehose.kernels*",
    "fyrehose.jsontext",
    "fyrehose.ndjson",
    "fyrehose.cluster.entries",
    "fyrehose.cluster.role",
    "fyrehose.web.session",
    "fyrehose.web.client_session",
    "fyrehose.protocols.http.bodies",
    "fyrehose.protocols.*.frames",
    "fyrehose.protocols.*session",
)
#: Packages that these modules must not import, even indirectly.
OUTSIDE = {"twisted", "zope", "zmq", "pyspark", "pyarrow", "socket", "asyncio", "threading", "time"}

#: Interfaces, and an implementation that tests/conformance tests together with its interface.
UNTESTED = {"fyrehose.interfaces", "fyrehose.broker.sequencer"}


#: The graph of imports, which the build of fyrehose-protocols reads, too.
_GRAPH = runpy.run_path(str(ROOT / "tools" / "import_graph.py"))
MODULES: dict[str, Path] = _GRAPH["MODULES"]
ancestors, imported, imports_of, reached = (_GRAPH[name] for name in ("ancestors", "imported", "imports_of", "reached"))


def outside(names: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & OUTSIDE


def matching(*patterns: str) -> list[str]:
    return [name for name in MODULES if any(fnmatch(name, pattern) for pattern in patterns)]


#: The one kernel that makes system calls; no module of SANS_IO reaches it.
COMMIT = "fyrehose.kernels.pure.commit"


# Each of these tests examines all modules: one test per module would add a thousand tests and no information.
def test_sans_io_modules_import_no_io() -> None:
    # The kernels read the environment, and the settings use ipaddress; neither does input or output.
    found = {module: outside(reached(module)) for module in {*matching(*SANS_IO)} - {COMMIT}}
    assert {module: names for module, names in found.items() if names} == {}


def test_sans_io_modules_are_found() -> None:
    assert {"fyrehose.records", "fyrehose.errors", "fyrehose.journal.format"} <= set(matching(*SANS_IO))
    assert "fyrehose.protocols.figg.session" in matching(*SANS_IO)


@pytest.mark.slow
def test_importing_a_session_imports_no_reactor() -> None:
    """Check the loaded modules of a real interpreter."""
    modules = [name for name in matching(*SANS_IO) if not name.endswith("__main__")]
    code = (
        f"import sys\nfor name in {modules!r}: __import__(name)\nprint(sorted({{'twisted', 'zmq'}} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert said.stdout == "[]\n"


#: The modules of a protocol that Spark's publisher drives: Figg without I/O.
OF_FIGG = {"fyrehose.protocols.figg.frames", "fyrehose.protocols.figg.session"}


def test_spark_imports_no_reactor_and_of_the_protocols_only_figg_without_io() -> None:
    packages = {"fyrehose.protocols", "fyrehose.protocols.figg"}
    for module in matching("fyrehose.spark", "fyrehose.spark.*"):
        there = reached(module)
        assert "twisted" not in {name.partition(".")[0] for name in there}, module
        assert {name for name in there if name in MODULES and name.startswith("fyrehose.protocols")} <= {
            *packages,
            *OF_FIGG,
        }, module


def test_protocols_do_not_import_each_other() -> None:
    for module in matching("fyrehose.protocols.*.*"):
        own = ".".join(module.split(".")[:3])
        others = {name for name in reached(module) if name.startswith("fyrehose.protocols.") and name in MODULES}
        assert {name for name in others if name != own and not name.startswith(f"{own}.")} == set(), module


def test_only_the_registry_imports_protocols() -> None:
    for module in MODULES:
        if not module.startswith("fyrehose.protocols"):
            direct = {name for name in imports_of(module) if name.startswith("fyrehose.protocols.") and name in MODULES}
            allowed = {"fyrehose.protocols.figg", *OF_FIGG} if module == "fyrehose.spark.publisher" else set()
            assert direct <= allowed, f"{module}: plugins are found by their folder; ask fyrehose.plugins for one"


def test_only_programs_import_the_reactor() -> None:
    """Only the server, the command line, and factories that are built without a reactor import it."""
    for module in MODULES:
        if "twisted.internet.reactor" in imports_of(module) and module != "fyrehose.server.tap":
            lines = MODULES[module].read_text(encoding="utf-8").splitlines()
            late = not any(line.startswith("from twisted.internet import reactor") for line in lines)
            builds = module == "fyrehose.net.connections" or fnmatch(module, "fyrehose.protocols.*.server")
            assert module.startswith("fyrehose.cli") or (builds and late), module


#: The bounds of what a peer may take in time and memory, which the broker and the connections share.
BOUNDS = ("net.turns", "net.slots", "net.inflight")
#: The layers, in order.  A module may import its own layer and those before it; modules that are not named here, such
#: as the command line, may import everything.
LAYERS = (
    ("jsontext", "kernels"),
    (
        *("errors", "imports", "records", "options", "identity", "interfaces", "standing", "sessions", "patterns"),
        *("spans", "ndjson", "toml_files", "observe", "client_tls", "routes", "inflate", "file_content", "allocator"),
        "fair_order",
    ),
    ("journal", "broker", "subscriptions", "periodic", *BOUNDS),
    ("net",),
    ("web",),
    ("offline", "cluster", "protocols", "admin", "forward.destination"),
    ("plugins",),
    ("server",),
)


def layer(module: str) -> int:
    """Return the index of *module* in LAYERS, or one beyond the last."""
    name = module.removeprefix("fyrehose.")
    if name in BOUNDS:
        return next(at for at, names in enumerate(LAYERS) if name in names)
    found = [at for at, names in enumerate(LAYERS) for each in names if name == each or name.startswith(f"{each}.")]
    return max(found, default=len(LAYERS))


def test_modules_import_only_what_is_below_them() -> None:
    for module in set(MODULES) - {"fyrehose"}:
        above = {"fyrehose", *ancestors(module)}
        there = {name for name in imports_of(module, types=True) if name in MODULES and name not in above}
        assert {name for name in there if layer(name) > layer(module)} == set(), module


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a cycle of *graph*; an empty list if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.slow
def test_modules_import_each_other_in_one_direction_only() -> None:
    graph = {
        module: {
            name
            for name in imports_of(module, types=True)
            if name in MODULES and (name in imports_of(module) or home(name) != home(module))
        }
        - {module, *ancestors(module)}
        for module in MODULES
    }
    assert cycle(graph) == []


def home(module: str) -> str:
    """Return the folder of *module*, in fyrehose/ or in fyrehose/protocols/; for a single file, its own name."""
    parts = module.split(".")[1:]
    depth = 2 if parts[:1] == ["protocols"] else 1
    return ".".join(parts[:depth]) if len(parts) > depth else module


def test_packages_are_folders_and_each_protocol_is_one() -> None:
    assert home("fyrehose.broker.guard") == home("fyrehose.broker.peer") == "broker"
    assert home("fyrehose.protocols.http.server") == "protocols.http"
    assert home("fyrehose.records") == "fyrehose.records"


def test_cycles_are_found() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_the_journal_and_the_broker_do_not_import_each_other() -> None:
    for one, other in (("journal", "broker"), ("broker", "journal")):
        for module in matching(f"fyrehose.{one}.*"):
            assert not [name for name in imports_of(module) if name.startswith(f"fyrehose.{other}")], module


def private_names(node: ast.AST) -> set[str]:
    """Return the private members of ``self`` that *node* names, and the private methods that it defines."""
    found = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) in ("self", "super()"):
            found.add(each.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def classes_of(module: str) -> Iterator[ast.ClassDef]:
    """Yield the classes that *module* defines."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


#: Public classes whose names the frames of several protocols share, as docs/adding-a-protocol.md says.
REPEATED = {"Ack", "Data", "Frame", "FrameType", "MessageRun"}
#: Words of a specification's frame that are also the server's own word for the same thing.
SHARED = {"Publish"}


def test_public_classes_have_names_of_their_own() -> None:
    """A name means one thing in the whole package, except in frames, which take their names from specifications."""
    modules: dict[str, list[str]] = {}
    for module in MODULES:
        for name in re.findall(r"^class ([A-Za-z]\w*)", MODULES[module].read_text(encoding="utf-8"), re.MULTILINE):
            modules.setdefault(name, []).append(module)
    frames = set(matching("fyrehose.protocols.*.frames"))
    several = {name for name, found in modules.items() if len(found) > 1}
    assert {name: modules[name] for name in several - REPEATED - SHARED} == {}
    assert {name for name in REPEATED if set(modules[name]) <= frames} == several - SHARED


def test_protocols_name_no_private_member_of_their_shell() -> None:
    """Subclasses of SessionProtocol, and their subclasses, use only its documented members."""
    shell = next(each for each in classes_of("fyrehose.net.tcp") if each.name == "SessionProtocol")
    shells, found = {"SessionProtocol": private_names(shell)}, []
    for module in (
        "fyrehose.net.tcp",
        "fyrehose.web.shell",
        *matching("fyrehose.protocols.*.server", "fyrehose.admin.listener"),
    ):
        for each in classes_of(module):
            base = next((base.id for base in each.bases if isinstance(base, ast.Name) and base.id in shells), None)
            if base is not None:
                found.append(each.name)
                assert private_names(each) & shells[base] == set(), each.name
                shells[each.name] = shells[base] | private_names(each)
    assert found == [
        "ClosesIdle",
        "WebProtocol",
        "AdminProtocol",
        "BusProtocol",
        "CollectorProtocol",
        "ReadingProtocol",
        "PublisherProtocol",
        "SnapshotProtocol",
        "FiggProtocol",
        "HttpProtocol",
        "LumberjackProtocol",
        "RelinkProtocol",
        "SyslogProtocol",
    ]


@cache
def imported_by_tests(folder: Path) -> frozenset[str]:
    """Return the imports of all tests directly in *folder*."""
    found: set[str] = set()
    for path in folder.glob("test_*.py"):
        found |= imported(path.read_text(encoding="utf-8"), "")
    return frozenset(found)


def test_every_module_has_tests_in_its_folder() -> None:
    """A module has a test file of its name, or neighbouring tests that import it; all plugins are tested alike."""
    untested = []
    for module in [name for name, path in MODULES.items() if path.name != "__init__.py" and name not in UNTESTED]:
        *folders, name = module.split(".")[1:]
        if name in ("plugin", "__main__") or module.startswith(("fyrehose.testing.", "fyrehose.kernels.")):
            # doubles and plugins are tested by the conformance suites, and both versions of a kernel by one test
            continue
        folder = ROOT.joinpath("tests", *folders)
        if not folder.joinpath(f"test_{name}.py").exists() and module not in imported_by_tests(folder):
            untested.append(module)
    assert untested == []


def test_every_test_has_a_module() -> None:
    free = (
        "tests/benchmarks/*",
        "tests/live/*",
        "tests/conformance/*",
        "tests/docs/*",
        "tests/doubles/*",
        "tests/verification/consumers/*",
        "tests/verification/resent/*",
        "tests/verification/fuzz/*",
        "tests/kernels/*",
        "tests/trial/*",
        "tests/verification/simulation/*",
        "tests/verification/torture/*",
        # Tests of several modules of the journal, or of its copies, together.
        "tests/journal/test_large_batches.py",
        "tests/journal/test_syncs.py",
        "tests/offline/test_syncs.py",
        "tests/journal/test_formats.py",
        "tests/journal/test_identity.py",
        "tests/journal/test_newer.py",
        "tests/journal/test_descriptors.py",
        # What requests of workers cost, and workers of a cluster: lanes, work, table and replication together.
        "tests/subscriptions/test_cost.py",
        "tests/cluster/test_shared_work.py",
        # Handshakes, holding, connections and TLS together.
        "tests/net/test_failed_handshakes.py",
        # The server's command, configuration, listeners and journal together.
        "tests/cli/test_wrong_inputs.py",
        # The sessions and columns of one protocol together.
        "tests/protocols/lumberjack/test_progress.py",
        "tests/protocols/lumberjack/test_routes.py",
        # The session and the server of one protocol together, with the broker.
        "tests/protocols/http/test_keys.py",
        "tests/protocols/http/test_memory.py",
        "tests/protocols/relink/test_subscriptions.py",
        "tests/protocols/relink/test_forgotten.py",
        "tests/protocols/relink/test_refused_transactions.py",
        "tests/protocols/relink/test_violations.py",
        # The command fyrehose-spark with a session of Spark.
        "tests/spark/test_command.py",
        # The programs in examples/ and in the recipes.
        "tests/spark/test_offsets.py",
        "tests/spark/test_pipeline.py",
        "tests/spark/test_sinks.py",
        "tests/spark/test_storms.py",
        "tests/spark/test_vectors.py",
        # Lumberjack and Relink with a replicated journal, and the settings of replication with a NATS server.
        "tests/cluster/test_lumberjack.py",
        "tests/cluster/test_relink.py",
        "tests/cluster/test_tls.py",
    )
    orphans = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT)
        name = ".".join(["fyrehose", *relative.parts[1:-1], relative.stem.removeprefix("test_")])
        # test_link_inbound.py tests a part of link.py.
        modules = accumulate(name.split("_"), "{}_{}".format)
        if MODULES.keys().isdisjoint(modules) and not any(fnmatch(str(relative), pattern) for pattern in free):
            orphans.append(str(relative))
    assert orphans == ["tests/test_layers.py"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import twisted.internet.defer", {"twisted.internet.defer"}),
        ("def f():\n import zmq", {"zmq"}),
        ("from twisted.internet import reactor", {"twisted.internet", "twisted.internet.reactor"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import zmq", {"typing", "typing.TYPE_CHECKING"}),
        ("if TYPE_CHECKING or x:\n import zmq", {"zmq"}),
        ("if TYPE_CHECKING:\n import a\nelse:\n import b", {"b"}),
        ("from . import frames", {"fyrehose.journal", "fyrehose.journal.frames"}),
        ("from ..records import Run", {"fyrehose.records", "fyrehose.records.Run"}),
    ],
)
def test_imports_are_read_from_the_source(source: str, names: set[str]) -> None:
    assert imported(source, "fyrehose.journal") == names


def test_imports_for_type_checking_are_read_on_request() -> None:
    assert "zmq" in imported("if TYPE_CHECKING:\n import zmq", "fyrehose", types=True)


def test_imports_of_imported_modules_are_followed() -> None:
    assert "twisted" in outside(reached("fyrehose.broker.broker"))
    assert "fyrehose.records" in reached("fyrehose.server.service"), "imports of the broker are not followed"
    assert "fyrehose" in reached("fyrehose.records"), "the import of the package is not followed"
