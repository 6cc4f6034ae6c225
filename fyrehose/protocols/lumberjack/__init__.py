"""Lumberjack, versions 1 and 2: the protocol of Filebeat and other Beats over TCP or TLS, acknowledged by windows."""
