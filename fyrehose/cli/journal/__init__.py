"""Commands that read and copy the files of a journal."""
