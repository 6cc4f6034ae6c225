"""How fast it is: load from outside, the real server in a process of its own, and the servers of others beside it.

cases      what is measured, a line each               command  which of them, from the command line
runner     rounds, each server in its turn             results  medians and spread     table, plot
servers    what is measured: Fyrehose and its peers    makers   the load makers, as seen by the runner
scraping   what Prometheus does meanwhile
maker      a load maker: the program                   wires    prepared bytes, and counting what comes back
"""
