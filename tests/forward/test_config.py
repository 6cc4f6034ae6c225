"""Test the file of ``fyrehose forward``: its tables, its secrets, and one line for each mistake."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.errors import ConfigError
from fyrehose.forward.config import read_config
from fyrehose.forward.destination import Secret, SendPlace
from fyrehose.forward.http import BulkTable, HttpTable
from fyrehose.forward.kafka import producer_options

TABLE = '[[forward]]\nname = "n"\nstreams = "logs.*"\n'


def read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "forward.toml"
    path.write_text(text)
    return read_config(path)


def test_table_is_of_the_class_of_its_destination(tmp_path: Path) -> None:
    urls = '["opensearch+https://one:9200/x", "opensearch+https://two"]'
    text = f'{TABLE}to = {urls}\nindex = "logs-{{date}}"\nlinger = "2s"'
    (table,) = read(tmp_path, text).forward
    assert isinstance(table, BulkTable)
    assert table.to == (
        SendPlace("opensearch", True, "one", 9200, "/x"),
        SendPlace("opensearch", True, "two", 443, ""),
    )
    assert (table.linger, table.letters, table.source) == (2.0, "n.dead", ("127.0.0.1:8117",))


def test_secrets_are_read_from_files_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARD_TEST", "s3cret")
    tmp_path.joinpath("token").write_text("Bearer abc\nmore\n")
    (table,) = read(tmp_path, f'{TABLE}to = "http://h"\nauthorization = "file:token"').forward
    assert isinstance(table, HttpTable)
    assert table.authorization == Secret("file:token", "Bearer abc")
    assert "abc" not in repr(table)


def test_options_of_kafka_are_those_of_the_table_and_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths of certificates begin at the folder of the file."""
    monkeypatch.setenv("FORWARD_TEST", "s3cret")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for path in (tmp_path / "ca.pem", folder / "own.pem"):
        path.write_text("a certificate")
    text = f'{TABLE}timeout = "1.5s"\nto = ["{{0}}://h:1", "{{0}}://[::1]:2"]\n'
    (table,) = read(tmp_path, text.format("kafka")).forward
    usual = {"bootstrap.servers": "h:1,[::1]:2", "enable.idempotence": "true", "client.id": "n", "linger.ms": "5"}
    assert producer_options(table) == usual | {"delivery.timeout.ms": "1500"}
    own = '{acks = -1, "linger.ms" = "7", "sasl.password" = "env:FORWARD_TEST"}'
    (table,) = read(tmp_path, f'{text.format("kafkas")}tls = "ca.pem,{folder}/own.pem"\noptions = {own}').forward
    usual |= {"security.protocol": "ssl", "delivery.timeout.ms": "1500"}
    usual |= {"ssl.ca.location": f"{tmp_path}/ca.pem", "ssl.certificate.location": f"{folder}/own.pem"}
    assert producer_options(table) == usual | {"acks": "-1", "linger.ms": "7", "sasl.password": "s3cret"}
    assert "s3cret" not in repr(table)


@pytest.mark.parametrize(
    "key", ['tls = "{}"', 'from-tls = "{}"', 'authorization = "file:{}"', 'from-token = "file:{}"']
)
def test_table_differs_after_a_file_that_it_names_was_replaced(key: str, tmp_path: Path) -> None:
    text = f'{TABLE}to = "https://h"\n{key.format("named")}'
    tmp_path.joinpath("named").write_text("one")
    before = read(tmp_path, text).forward
    assert read(tmp_path, text).forward == before
    tmp_path.joinpath("named").write_text("two")
    assert read(tmp_path, text).forward != before


#: By destination as the page names it, a URL.
DESTINATIONS = {"Elasticsearch": "opensearch+http://h", "HTTP": "http://h", "lumberjack": "lumberjack://h"}
DESTINATIONS |= {"Kafka": "kafka://h:1", "Fyrehose": "fyrehose://h:1"}


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_page_has_the_default_of_each_key(destination: str, tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "forward.md").read_text().partition("## Keys of a table")[2]
    known: dict[str, str | None] = {}
    of = ""
    for line in re.findall(r"^\|.*`.*\|$", page.partition("Secrets are")[0], re.MULTILINE):
        *first, keys, default, _ = line.split("|")[1:-1]
        of = "".join(first).strip() or of
        if not first or destination in of:
            known |= dict(zip_longest(re.findall("`(.*?)`", keys), re.findall("`(.*?)`", default)))
    (plain,) = read(tmp_path, f'{TABLE}to = "{DESTINATIONS[destination]}"').forward
    fields = {each.metadata["key"] or each.name.replace("_", "-") for each in attrs.fields(type(plain))}
    assert fields == known.keys()
    said = [f'{key} = "{value}"' for key, value in known.items() if value is not None and key not in ("dead", "gzip")]
    (table,) = read(tmp_path, "\n".join([f'{TABLE}to = "{DESTINATIONS[destination]}"', *said])).forward
    assert table == plain
    assert (known["dead"], known.get("gzip", "true")) == ("NAME.dead", "true")
    assert getattr(plain, "gzip", True)


LUMBERJACK, HTTP = (f'{TABLE}to = "{url}"\n' for url in ("lumberjack://h:5044", "http://h"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "forward is missing; expected a table [[forward]] for each subscription"),
        ("forward = 3", "line 1: forward is 3; expected a table [[forward]] for each subscription"),
        (TABLE, "line 1, in [[forward]] table 1: to is missing; expected a URL, such as lumberjack://"),
        (f"{LUMBERJACK}batch-byte = 3", "line 5, in [[forward]] table 1: unknown key 'batch-byte'; did you mean bat"),
        (f'{LUMBERJACK}index = "x"', "line 5, in [[forward]] table 1: unknown key 'index'"),
        (f'{TABLE}to = "lumberjak://h:1"', "line 4, in [[forward]] table 1: unknown destination 'lumberjak'; expect"),
        (f'{TABLE}to = "kafka://h"', "line 4, in [[forward]] table 1: to is 'kafka://h'; expected URLs of one sche"),
        (f'{TABLE}to = ["http://h", "https://h"]', "expected one URL or several, all of one scheme"),
        (f'{TABLE}to = "http://u:p@h"', "secrets have keys of their own"),
        (f'{HTTP}authorization = "Bearer x"', "expected file:PATH or env:NAME, because secrets do not"),
        (f'{HTTP}authorization = "file:no"', "authorization cannot be read; expected a file that can be"),
        (f'{LUMBERJACK}from-tls = "no.pem"', "line 5, in [[forward]] table 1: from-tls cannot be read; expected fil"),
        (f'{HTTP}authorization = "env:NO_SUCH"', "that is set, not 'NO_SUCH'"),
        (f"{HTTP}headers = {{a = 1}}", "headers is a table; expected a table of headers, each with a text"),
        (f'{HTTP}headers = {{a = "b\\n"}}', "expected a table of headers, each with a text"),
        (f'{HTTP}headers = "a"', "expected a table of headers, each with a text"),
        (f'{HTTP}line = "{{documnt}}"', "not {documnt}; did you mean document?"),
        (f'{TABLE}to = "kafka://h:1"\noptions = {{a = 1.5}}', "expected a table of options of librdkafka; passwords"),
        (f'{TABLE}to = "kafka://h:1"\noptions = "a"', "expected a table of options of librdkafka; passwords"),
        (f'{LUMBERJACK}dead = "logs.dead"', "streams 'logs.*' include the dead letters in 'logs.dead'"),
        (f'{TABLE}to = "fyrehose://127.0.0.1:8117"', "streams 'logs.*' include 'logs.*', which this writes"),
        (f'{LUMBERJACK}linger = "soon"', "line 5, in [[forward]] table 1: linger is 'soon'; expected"),
        (f"{LUMBERJACK}batch-count = 0", "batch-count is 0; expected a number of at least 1"),
        (f'{LUMBERJACK}since = "yesterday"', "line 5, in [[forward]] table 1: since is 'yesterday'; expected latest"),
        (f'{LUMBERJACK}from = "h:x"', "line 5, in [[forward]] table 1: from is 'h:x'; expected HOST:PORT"),
        (f"{LUMBERJACK}compression = 10", "expected a level of zlib from 0 (no compression) to 9"),
        (LUMBERJACK * 2, "expected another name in each table, because it is that of the subscription"),
        (LUMBERJACK.replace('"n"', '".n"'), "expected a name of 1 to 255 bytes that does not begin with a dot"),
    ],
)
def test_mistake_is_one_line_that_says_where_and_what_is_expected(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    assert expected in str(error.value)
    assert str(error.value).startswith(f"invalid {tmp_path / 'forward.toml'}")
    assert "\n" not in str(error.value)
