"""The bytes that load makers send and count, in one module for each protocol.

These modules follow the specifications with struct and numpy; they use none of the measured code.
"""
