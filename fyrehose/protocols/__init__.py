"""The protocols: one folder each, none of which knows of another."""
