"""The bytes that load makers send and count, in one module for each protocol.

Written from the texts of the protocols with struct and numpy: nothing of what is measured is used here.
"""
