"""The path of a message through the server: access policy, numbers, the journal, and delivery to subscribers."""
