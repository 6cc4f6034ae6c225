"""Test the recipes of docs/recipes.md, with the real programs if they are installed."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import ssl
import sys
import tomllib
import urllib.request
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pylogbeat
import pytest
import yaml
from backports import zstd

from fyrehose.testing.ports import free_port
from tests.live.conftest import PATIENCE, program, ran, stored, until

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "deploy" / "recipes"
PAGE = (ROOT / "docs" / "recipes.md").read_text()
LUMBERJACK = (ROOT / "docs" / "protocols" / "lumberjack.md").read_text()
HTTP = ("--listen", "http=tcp:0:interface=127.0.0.1")

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def commands(page: str, name: str) -> list[list[str]]:
    """Return the commands of a block of *page* that is marked to be run, as lists of words."""
    block = re.findall(rf"<!-- run: {name} -->\n```sh\n(.*?)```", page, re.DOTALL)[0]
    return [line.split() for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("page", [PAGE, LUMBERJACK], ids=["recipes", "lumberjack"])
def test_filebeat_delivers_with_certificates_and_a_policy(page: str, start: Any, tmp_path: Path) -> None:
    """pylogbeat replaces Filebeat, with the settings of the file."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    certificates, (_, _, *words) = commands(page, "filebeat")
    ran(*certificates, cwd=tmp_path)
    server = start(*["lumberjack=tcp:0" if word == "lumberjack=tcp:5044" else word for word in words])
    output = yaml.safe_load((RECIPES / "filebeat" / "filebeat-tls.yml").read_text())["output.logstash"]
    (authority,) = output["ssl.certificate_authorities"]
    connect = partial(
        pylogbeat.PyLogBeatClient,
        host="127.0.0.1",
        port=server.port("lumberjack"),
        timeout=PATIENCE,
        ssl_enable=True,
        ssl_verify=True,
        ca_certs=str(tmp_path / authority),
    )
    client = connect(certfile=str(tmp_path / output["ssl.certificate"]), keyfile=str(tmp_path / output["ssl.key"]))
    client.send(['{"message":"one","@metadata":{"beat":"filebeat"}}'])
    client.close()
    stranger = connect()
    with pytest.raises((ssl.SSLError, OSError, pylogbeat.ConnectionException)):
        stranger.send(["{}"])
    stranger.close()
    assert server.stop() == 0
    (found,) = stored(tmp_path / "data", "lumberjack")
    assert re.fullmatch(r"web-1 \(127\.0\.0\.1:\d+\)", found["producer"])
    assert found["topic"] == "filebeat"
    assert output["hosts"][0].partition(":")[0] == certificates[1], (
        "the file must use the name in the server's certificate"
    )


def test_filebeat_on_the_same_machine_finds_the_default_listener() -> None:
    from fyrehose.protocols.lumberjack.plugin import plugin

    output = yaml.safe_load((RECIPES / "filebeat" / "filebeat.yml").read_text())["output.logstash"]
    assert output == {"hosts": [f"127.0.0.1:{plugin.default_port}"]}


def fluent_bit() -> tuple[str, dict[str, str]]:
    """Return the path and the headers of Fluent Bit's request; json_lines has this content type since version 3.1."""
    (output,) = yaml.safe_load((RECIPES / "fluent-bit" / "fluent-bit.yaml").read_text())["pipeline"]["outputs"]
    assert (output["name"], output["host"], output["port"], output["format"]) == (
        *("http", "127.0.0.1", 8117),
        "json_lines",
    )
    return output["uri"], {"Content-Type": "application/x-ndjson", "Content-Encoding": output["compress"]}


def vector() -> tuple[str, dict[str, str]]:
    """Return the path and the headers of Vector's request."""
    sink = yaml.safe_load((RECIPES / "vector" / "vector.yaml").read_text())["sinks"]["fyrehose"]
    assert (sink["encoding"]["codec"], sink["framing"]["method"]) == ("json", "newline_delimited")
    url = urlsplit(sink["uri"])
    assert url.netloc == "127.0.0.1:8117"
    return url.path, {**sink["request"]["headers"], "Content-Encoding": sink["compression"]}


@pytest.mark.parametrize("recipe", [fluent_bit, vector])
def test_requests_of_the_recipe_make_one_message_for_each_event(recipe: Any, start: Any, tmp_path: Path) -> None:
    path, headers = recipe()
    server = start("--data-dir", "data", *HTTP)
    connection = HTTPConnection("127.0.0.1", server.port("http"), timeout=PATIENCE)
    pack = {"gzip": gzip.compress, "zstd": zstd.compress}[headers["Content-Encoding"]]
    connection.request("POST", path, pack(b'{"log":"one"}\n{"log":"two"}\n'), headers)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["count"]) == (200, 2)
    connection.close()
    assert server.stop() == 0
    found = stored(tmp_path / "data", path.rpartition("/")[2])
    assert [record["payload"] for record in found] == ['{"log":"one"}', '{"log":"two"}']


def test_prometheus_scrapes_the_server_with_the_files_of_the_example(start: Any, run: Any, tmp_path: Path) -> None:
    prometheus, promtool = program("prometheus"), program("promtool")
    server = start("--data-dir", "data", "--listen", "admin=tcp:0:interface=127.0.0.1", *HTTP)
    example = ROOT / "docs" / "examples" / "monitoring"
    shutil.copy(example / "alerts.yml", tmp_path)
    text = (example / "prometheus.yml").read_text().replace(":8118", f":{server.port('admin')}")
    (tmp_path / "prometheus.yml").write_text(text.replace("_interval: 15s", "_interval: 1s"))
    ran(promtool, "check", "config", tmp_path / "prometheus.yml")
    port = free_port()
    run(
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )

    def found(expression: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={expression}", timeout=10) as web:
                return [(each["value"][1], each["metric"].get("stream")) for each in json.load(web)["data"]["result"]]
        except OSError:
            return None

    with urllib.request.urlopen(f"http://127.0.0.1:{server.port('http')}/streams/a%00b", b"x", timeout=PATIENCE) as web:
        assert web.status == 200
    assert until(lambda: found("fyrehose_stream_last_seq"), "nothing is scraped") == [("1", r"a\x00b")]
    for name in ("fyrehose_journal_segments", "up"):  # a scrape that takes more than a second has failed
        until(lambda name=name: found(name) == [("1", None)], f"{name} is not 1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10) as web:
        (group, *_) = json.load(web)["data"]["groups"]
    assert all(rule["health"] in ("ok", "unknown") for rule in group["rules"])
    assert server.stop() == 0


def kubernetes() -> dict[str, Any]:
    """Return the manifests by their kind."""
    found = yaml.safe_load_all((RECIPES / "kubernetes" / "fyrehose.yaml").read_text())
    return {manifest["kind"]: manifest for manifest in found}


def test_kubernetes_server_starts_with_its_configuration_and_its_probes_pass(start: Any, tmp_path: Path) -> None:
    manifests = kubernetes()
    files = manifests["ConfigMap"]["data"]
    port = free_port()
    config = files["fyrehose.toml"]
    for old, new in (
        ("/etc/fyrehose", str(tmp_path)),
        ("/var/lib/fyrehose", str(tmp_path / "data")),
        ("127.0.0.1:8118", f"127.0.0.1:{port}"),
        ("tcp:8118:", f"tcp:{port}:"),
    ):
        config = config.replace(old, new)
    for listener in tomllib.loads(files["fyrehose.toml"])["listen"].values():
        config = config.replace(f'"{listener}"', '"tcp:0:interface=127.0.0.1"')
    (tmp_path / "fyrehose.toml").write_text(config)
    (tmp_path / "policy.toml").write_text(files["policy.toml"])
    server = start("--config", "fyrehose.toml")
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        python, *words = container[probe]["exec"]["command"]
        assert python == "python"
        command = [sys.executable, *[word.replace(":8118", f":{port}") for word in words]]
        ran(*command)
    assert server.stop() == 0
    assert ran(*command, status=None).returncode != 0, "the probe can fail"


def test_kubernetes_ports_volumes_and_files_fit_each_other() -> None:
    manifests = kubernetes()
    listeners = tomllib.loads(manifests["ConfigMap"]["data"]["fyrehose.toml"])["listen"]
    opened = {int(endpoint.split(":")[1]) for name, endpoint in listeners.items() if name != "admin"}
    containers = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    exposed = {port["containerPort"] for container in containers for port in container["ports"]}
    assert {port["port"] for port in manifests["Service"]["spec"]["ports"]} == exposed == opened | {9090}
    spec = manifests["StatefulSet"]["spec"]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for container in containers for mount in container["volumeMounts"]} == volumes


def test_compose_file_mounts_existing_files() -> None:
    folder = RECIPES / "prometheus"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert services["prometheus"]["network_mode"] == "service:fyrehose"
    mounted = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    files = [folder / name for name in mounted if name.startswith(".")]
    assert len(files) == 6
    assert all(path.is_file() for path in files)
    assert (folder / services["fyrehose"]["build"]["context"]).resolve() == ROOT


def test_every_recipe_states_what_is_tested() -> None:
    table = PAGE.partition("\n## ")[0]
    assert {path.name for path in RECIPES.iterdir()} == set(re.findall(r"\| `([a-z-]+)/`", table))
