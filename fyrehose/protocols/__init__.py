"""The protocols: one folder each; no protocol imports another one."""
