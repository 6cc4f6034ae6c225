"""Shared subscriptions: each record of a stream goes to one of several workers, for a limited time.

    waiting -> leased -> settled
       ^          |----> returned, ended -> (delay) -> waiting
       |__________|      the limit-th failure ------> dead letter      retention -> expired

A record is *final* when it is settled, a dead letter (a copy for people to look at), or expired.  The *floor* of a
stream is the number up to which all records are final.

:mod:`~.progress` is what is durable, and how it is written; :mod:`~.lane` decides who gets which record, without I/O;
:mod:`~.table` connects both with the journal.  The rules are numbered as in :mod:`~.lane`.
"""
