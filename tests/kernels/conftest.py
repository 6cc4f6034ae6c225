"""Run the tests of a kernel with both of its versions, which each module here names ``pure`` and ``native``."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes *kernel* with the pure and with the native version."""
    if "kernel" in metafunc.fixturenames:
        pure, native = metafunc.module.pure, metafunc.module.native
        unbuilt = pytest.mark.skipif(native is None, reason="the native kernels are not built")
        versions = [pytest.param(pure, id="pure"), pytest.param(native, id="native", marks=unbuilt)]
        metafunc.parametrize("kernel", versions)
