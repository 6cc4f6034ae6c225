"""Jobs on tables of streams; each is a function here and a command of ``fyrehose-spark``."""
