"""Shared subscriptions: each record of a stream goes to one of several workers, for a limited time.

    waiting -> leased -> settled                        all final -> the floor moves
       ^          |----> returned, ended -> (delay) -> waiting
       |__________|      the limit-th failure ------> dead letter      retention -> expired

:mod:`~.progress` is what is durable, and how it is written; :mod:`~.lane` decides who gets which record, without I/O;
:mod:`~.table` connects both with the journal.  The rules are numbered as in :mod:`~.lane`.
"""
