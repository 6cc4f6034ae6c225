"""Every option that is a limit has a test of its boundary: at its default, one below and one above it.

A new option that is a number, a size or a duration fails this test until a table names its test, or says why it is no
limit.  ``*`` stands for every protocol that has the option and no row of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fyrehose import plugins
from fyrehose.journal.settings import JournalSettings
from fyrehose.options import options_of
from fyrehose.server.config import ServerSettings

ROOT = Path(__file__).parents[2]
BOUNDARIES = {
    "*.idle_timeout": "tests/web/test_shell.py::test_idle_connection_is_closed_unless_it_waits_for_an_answer",
    "*.max_connections": (
        "tests/conformance/test_connection_limits.py::test_beyond_the_limit_of_a_listener_an_idle_connection_is_closed"
    ),
    "*.max_per_host": (
        "tests/conformance/test_connection_limits.py::test_exactly_as_many_connections_of_one_address_are_open_as_the_limit_says"
    ),
    "*.timeout": "tests/net/test_tcp.py::test_a_frame_must_be_complete_in_time_and_each_has_a_time_of_its_own",
    "backbone.destination_rate": (
        "tests/conformance/test_backbone_limits.py::test_no_more_bytes_are_sent_to_a_host_when_its_rate_is_used_up"
    ),
    "backbone.push_rate": (
        "tests/conformance/test_backbone_limits.py::test_exactly_as_many_pushes_a_second_are_accepted_as_the_rate_says"
    ),
    "backbone.subscribers": (
        "tests/protocols/backbone/test_session_server.py::test_clients_behind_one_address_may_have_all_places"
    ),
    "eventbus.max_connections": (
        "tests/conformance/test_eventbus_limits.py::test_all_ports_together_admit_as_many_connections_as_the_limit_says"
    ),
    "eventbus.max_payload": "tests/conformance/test_eventbus_limits.py::test_an_event_may_be_as_large_as_the_limit",
    "eventbus.timeout": (
        "tests/conformance/test_eventbus_limits.py::test_a_client_that_does_not_read_is_disconnected_after_the_time_out"
    ),
    "syslog.max_payload": (
        "tests/protocols/syslog/test_session.py::test_message_that_is_too_large_does_not_stop_those_behind_it"
    ),
    "figg.max_payload": "tests/protocols/figg/test_session.py::test_data_limit_is_exact_at_the_default",
    "http.longest_wait": (
        "tests/protocols/http/test_consuming.py::test_subscriptions_are_those_of_a_model_whatever_is_requested"
    ),
    "http.max_payload": "tests/conformance/test_http_limits.py::test_a_message_may_be_as_large_as_the_limit",
    "journal.min_free": ("tests/journal/test_journal.py::test_publishes_are_refused_below_the_default_of_min_free"),
    "lumberjack.idle_timeout": (
        "tests/protocols/lumberjack/test_server.py::test_idle_connection_is_closed_without_a_log_line"
    ),
    "lumberjack.max_frame": "tests/conformance/test_lumberjack_limits.py::test_an_event_may_be_as_large_as_the_limit",
    "relink.max_payload": "tests/protocols/relink/test_link_limits.py::test_message_size_limit_is_inclusive",
    "relink.retention": "tests/protocols/relink/test_registry.py::test_links_are_kept_and_displaced_as_a_model_says",
    "relink.window": ("tests/protocols/relink/test_link_limits.py::test_subscriber_gets_at_most_a_window_of_messages"),
    "server.keys_kept": (
        "tests/broker/test_once.py::test_a_key_older_than_the_limit_is_forgotten_before_keys_of_small_holders"
    ),
    "server.max_streams": "tests/conformance/test_stream_limit.py::test_exactly_as_many_streams_exist_as_the_limit",
    "server.memory": (
        "tests/conformance/test_memory_limits.py::test_publishes_in_flight_are_accepted_up_to_the_limit_of_all_connections"
    ),
    "server.streams_per_address": "tests/broker/test_quotas.py::test_one_stream_beyond_the_default_number_is_refused",
    "server.named_subscriptions": "tests/subscriptions/test_exclusive.py::test_the_number_of_subscriptions_is_limited",
    "server.subscriptions_per_address": (
        "tests/broker/test_quotas.py::test_the_default_number_of_subscriptions_is_allowed_and_one_more_is_refused"
    ),
}
#: Numbers that no peer can reach, with the reasons.
NO_LIMITS = {
    "admin.metric_streams": "how many streams /metrics lists",
    "journal.keep_age": "what the operator wants to keep",
    "journal.keep_bytes": "what the operator wants to keep",
    "journal.subscription_bytes": "what the operator wants to keep",
    "journal.subscription_timeout": "what the operator wants to keep",
    "journal.segment_size": "how the journal is cut into files",
    "server.retire_idle": "what the operator wants to keep",
}


def options() -> list[str]:
    """Return every option whose value is a number."""
    classes = {"server": ServerSettings, "journal": JournalSettings}
    classes |= {name: plugins.load(name).settings for name in plugins.names()}
    return [
        f"{scope}.{field.name}"
        for scope, settings in classes.items()
        for field in options_of(settings)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    ]


def row(option: str) -> str:
    """Return the row of the tables that belongs to an option."""
    known = BOUNDARIES.keys() | NO_LIMITS.keys()
    return option if option in known else f"*.{option.partition('.')[2]}"


@pytest.mark.parametrize("option", options())
def test_every_limit_names_the_test_of_its_boundary(option: str) -> None:
    assert row(option) in BOUNDARIES.keys() | NO_LIMITS.keys(), (
        f"{option} is new: name the test of its boundary in BOUNDARIES, or say in NO_LIMITS why it is none"
    )


def test_every_row_belongs_to_an_option() -> None:
    rows = [*BOUNDARIES, *NO_LIMITS]
    assert len(rows) == len(set(rows))
    assert set(rows) == {row(option) for option in options()}


@pytest.mark.parametrize("named", sorted({*BOUNDARIES.values()}))
def test_the_tests_that_are_named_exist(named: str) -> None:
    file, _, test = named.partition("::")
    assert re.search(rf"^ *(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
