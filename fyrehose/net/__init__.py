"""The shared parts of protocol servers: sockets, TLS, endpoints, and limits of connections."""
