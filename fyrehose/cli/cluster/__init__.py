"""Commands for the servers of a cluster."""
