"""Replication: the journals of several servers are kept identical, byte for byte, through a shared log.

The leader appends its journal's bytes to the shared log as entries (:mod:`~fyrehose.replication.entries`); the
followers apply the entries that count.  Which server leads, and what counts, is decided in
:mod:`~fyrehose.replication.role`.
"""
