"""Measure a server, its protocols and the disk below it: `fyrehose bench`, and the benchmarks of a checkout."""
