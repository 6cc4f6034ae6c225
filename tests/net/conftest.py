"""An authority, whose certificates take time to make."""

from __future__ import annotations

import pytest

from fyrehose.testing.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))
