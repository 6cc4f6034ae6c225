"""Findings of `fyrehose doctor`, as people and programs get them."""

from __future__ import annotations

from fyrehose.cli.doctor.findings import Finding, Level


def test_finding_can_be_printed_as_a_json_object() -> None:
    found = Finding(Level.WARNING, "disk", "nearly full", "/data", "delete something")
    assert found.as_json() == {
        "level": "warning",
        "subject": "disk",
        "what": "nearly full",
        "where": "/data",
        "advice": "delete something",
    }


def test_levels_are_in_order() -> None:
    assert Level.OK < Level.NOTE < Level.WARNING < Level.ERROR
