"""Lumberjack, versions 1 and 2: what Filebeat and its family send, over TCP or TLS, acknowledged in windows."""
