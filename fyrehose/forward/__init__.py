"""``fyrehose forward``: read streams by named subscriptions, and send their records to other programs.

    tailer -> take(run) -> Forwarding: lanes, batches -> BatchSender.send(runs) -> BatchOutcome
                               |  done: the subscription's position moves      |  again: after a pause
                               +- refused for good: a dead letter, and then as if it were done

Nothing is kept here: the position is that of an exclusive subscription of the server that is read.  It moves when the
destination has confirmed a batch, or a dead letter is durable, so a record is sent at least once, whenever this
process, the destination or the server is killed.  Destinations that store it only once recognize a repetition: by the
identity that the epoch of the numbers, the stream and the number make.

- ``destination``: the contract of a destination: the keys of its table, its sender, and the outcome of a batch
- ``config``: the file; ``engine``: one subscription; ``service``: all subscriptions of a file, metrics and reloads
- ``http``, ``kafka``: destinations; those of Fyrehose's own protocols are in ``fyrehose/protocols/NAME/destination.py``
"""
