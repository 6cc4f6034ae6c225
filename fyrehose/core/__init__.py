"""The way of a message through the server: policy, numbers, the journal, and delivery to subscribers."""
