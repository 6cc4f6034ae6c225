"""Register ``twistd fyrehose``; the module is named as text, so that listing plugins imports nothing."""

from twisted.application.service import ServiceMaker

fyrehose = ServiceMaker(
    "fyrehose", "fyrehose.server.tap", "A durable message server: many protocols, one journal.", "fyrehose"
)
