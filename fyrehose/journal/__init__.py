"""The crash-safe log of all streams; ``format.py`` specifies the files."""
