"""Subscriptions with a name, whose progress the server keeps.

An *exclusive* one has one consumer at a time, which acknowledges all records up to a number.  A *shared* one has
workers, and each record goes to one of them, for a limited time:

    waiting -> leased -> settled
       ^          |----> returned, ended -> (delay) -> waiting
       |__________|      the limit-th failure ------> dead letter      retention -> expired

A record is *final* when it is settled, a dead letter (a copy for people to look at), or expired.  The *floor* of a
stream is the number up to which all records are final; that of an exclusive subscription is its position.

:mod:`~.progress` is what is durable, and how it is written; :mod:`~.lane` decides who gets which record, without I/O;
:mod:`~.table` connects both with the journal.  The rules are numbered as in :mod:`~.lane`.
"""
