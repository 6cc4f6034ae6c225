"""An example protocol: lines of text over TCP.  docs/adding-a-protocol.md walks through this folder."""
