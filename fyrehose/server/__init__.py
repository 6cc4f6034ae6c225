"""The server process: configuration, service, log, signals, and service manager."""
