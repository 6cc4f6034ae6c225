"""The process: the configuration, the service, the log, signals, and the service manager."""
