"""Commands that talk to a server: publish, tail, work, and tables of its streams."""
