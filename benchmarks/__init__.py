"""How fast it is beside others: the cases, servers and load makers of :mod:`fyrehose.bench`, and what they lack.

command    which cases, from the command line          runner   rounds, each server in its turn
peers      the servers of others                       maker    a load maker that knows their wires, too
table, plot, comparing, targets, growth                what is shown of the results
"""
