"""Fixtures of servers: see tests/doubles/own_process.py."""

from __future__ import annotations

import pytest

from tests.doubles.own_process import Ending


@pytest.fixture
def ending() -> Ending:
    """Record exit statuses and lines on standard error instead of ending the process."""
    return Ending()
