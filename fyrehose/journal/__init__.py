"""The crash-safe log of all streams; ``format.py`` is its specification."""
