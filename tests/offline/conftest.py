"""Fixtures: see tests/doubles/opened_journal.py."""

from __future__ import annotations

from tests.doubles.opened_journal import open_journal

__all__ = ["open_journal"]
