"""Tells twistd of ``twistd fyrehose``; names the module as text, so that looking for plugins imports nothing."""

from twisted.application.service import ServiceMaker

fyrehose = ServiceMaker(
    "fyrehose", "fyrehose.server.tap", "A messaging server: many listeners, one durable journal.", "fyrehose"
)
