"""Replication: the journals of several servers are kept identical, byte for byte, through a shared log.

The leader appends its journal's bytes to the shared log as entries (:mod:`~fyrehose.cluster.entries`); the
followers apply the entries that count.  :mod:`~fyrehose.cluster.role` decides which server leads, and
:class:`~fyrehose.cluster.entries.Validity` which entries count.  Docstrings refer to the numbered rules of
docs/cluster.md, "The rules of replication".
"""
