"""Compare the speed of Fyrehose with other servers, by the cases, servers and load makers of :mod:`fyrehose.bench`.

command    which cases, from the command line          runner   rounds, each server in its turn
peers      the servers of others                       maker    a load maker that knows their protocols, too
table, plot, comparing, targets, growth                how the results are shown
"""
