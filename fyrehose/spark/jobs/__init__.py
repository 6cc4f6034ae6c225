"""What is done again and again with streams that are tables; each a function here and a word of ``fyrehose-spark``."""
