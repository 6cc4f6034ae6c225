"""The configuration that takes the place of Logstash is valid."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path

from fyrehose.server.config import read_file, resolve

DOCS = Path(__file__).parents[2] / "docs"


def test_the_configuration_on_the_page_can_be_used(tmp_path: Path) -> None:
    [shown] = re.findall(r"```toml\n(.*?)```", (DOCS / "instead-of-logstash.md").read_text(), re.DOTALL)
    path = tmp_path / "fyrehose.toml"
    path.write_text(shown)
    found = read_file(path)
    policy = DOCS.parent / "deploy" / "recipes" / "filebeat" / "policy.toml"
    config = resolve("data", found.listen, found.options, str(policy))
    listeners = {listener.name: listener for listener in config.listeners}
    assert sorted(listeners) == ["admin", "http", "lumberjack"]
    settings = listeners["lumberjack"].settings
    assert settings.proxies == (ip_network("10.0.0.5/32"),)
    assert [str(route) for route in settings.routes] == ["logs.{fields.service}"]
    assert settings.tls_client_auth == "required"
