"""A protocol of lines, as an example of how to add one: docs/adding-a-protocol.md walks through this folder."""
