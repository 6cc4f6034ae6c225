"""Packages that extras bring, and the errors that name them."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from fyrehose import extras
from fyrehose.errors import MissingExtra
from fyrehose.extras import Extra

MISSING = Extra("nice", "nice-package", "nothing_of_this_name")
ALL = [each for each in vars(extras).values() if isinstance(each, Extra)]


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtra) as raised:
        MISSING.require("the bus")
    assert str(raised.value) == "the bus needs nice-package: pip install 'fyrehose[nice]'"


def test_an_installed_package_is_no_error() -> None:
    extra = Extra("any", "attrs", "attrs")
    assert extra.installed
    extra.require("everything")


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.package)
def test_the_extra_brings_the_package(each: Extra) -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    assert re.search(rf"^{each.package}\b", setup["options.extras_require"][each.name], re.MULTILINE)
    assert each.installed, "the tests have every extra"
