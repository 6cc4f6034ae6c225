"""The command ``fyrehose doctor``, which looks for what will go wrong."""
