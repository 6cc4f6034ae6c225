"""The TLS context of every client that uses the standard library: commands, served journals, Spark's tasks, NATS.

client_context("authority.pem") -> ssl.SSLContext
"""

from __future__ import annotations

import ssl


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """Return a TLS context that verifies the server's certificate and name, in the same way on each Python.

    Python 3.13 verifies by RFC 5280 to the letter, and so refuses an authority without the extension keyUsage: after an
    upgrade of Python alone, clients of an authority of ten years would no longer connect.

    :param authorities: the PEM file of the trusted authorities; None: those that this machine trusts
    :raises OSError: the file cannot be read; an SSLError: it is not a PEM file of certificates
    """
    context = ssl.create_default_context(cafile=authorities)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
