"""Fyrehose: a multi-protocol messaging server framework on Twisted."""

__version__ = "0.1.0"
