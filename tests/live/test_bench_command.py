"""Test `fyrehose bench` with real servers and a few messages."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fyrehose.bench.trial import NAMES, ROUNDS
from tests.live.conftest import FYREHOSE

pytestmark = pytest.mark.live


def test_every_protocol_is_measured_and_no_file_stays(tmp_path: Path) -> None:
    words = [FYREHOSE, "bench", "--data-dir", str(tmp_path), "--seconds", "1", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    for protocol, names in NAMES.items():
        full, single = (found["protocols"][protocol][name] for name in names)
        assert len(full) == len(single) == ROUNDS
        assert all(sample["rate"] > 0 and sample["micros"] > 0 for sample in full)
        assert all(sample.get("acknowledged.50", sample.get("arrived.50", 0)) > 0 for sample in single)
    assert all(each["p50"] > 0 for each in found["disk"])
    assert list(tmp_path.iterdir()) == []
