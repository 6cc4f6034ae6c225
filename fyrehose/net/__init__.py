"""What the protocols' servers share: sockets, TLS, endpoints, and limits on connections."""
