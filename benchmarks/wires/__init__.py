"""The bytes that load makers exchange with servers of others; :mod:`fyrehose.bench.wires` has Fyrehose's own."""
