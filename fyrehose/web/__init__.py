"""HTTP/1.1 for the listeners that speak it: a sans-I/O session over h11, and the shell around it.

session  bytes -> requests, answers -> bytes       server   the shell: deadlines, identity, pipelining
live     a stream as server-sent events            places   who can come to an endpoint, from which pages
tokens   bearer tokens: files, headers, comparison
"""
