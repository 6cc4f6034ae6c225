"""The bytes of the servers of others, as :mod:`fyrehose.bench.wires` has those of Fyrehose."""
