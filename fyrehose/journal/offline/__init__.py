"""Tools that read a journal from outside its server, also while the server writes: verify, dump, copy, serve."""
