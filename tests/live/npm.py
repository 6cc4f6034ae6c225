"""Packages of npm, for programs of others that run beside a server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NODE, NPM = shutil.which("node"), shutil.which("npm")
#: What npm says when it cannot reach its registry.
NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")
#: Longest time in which npm fetches packages, in seconds.
PATIENCE = 120

needed = pytest.mark.skipif(NODE is None or NPM is None, reason="a program of others is not installed: node, npm")


def install(folder: Path, cache: Path, *packages: str) -> None:
    """Install *packages* in *folder*, or those that its package.json pins; skip the test without a network."""
    assert NPM is not None
    words = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--cache", str(cache), *packages]
    ran = subprocess.run([NPM, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if ran.returncode and any(each in ran.stderr for each in NO_NETWORK):
        pytest.skip("a program of others is not installed: packages of npm, which cannot fetch them without a network")
    assert ran.returncode == 0, ran.stderr
