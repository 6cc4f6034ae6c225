"""HTTP/1.1 for the listeners that speak it: a sans-I/O session, and its Twisted protocol.

session  bytes -> requests, answers -> bytes       server   the protocol: deadlines, identity, pipelining
hosts    accepted hosts and origins                tokens   bearer tokens: files, headers, comparison
"""
