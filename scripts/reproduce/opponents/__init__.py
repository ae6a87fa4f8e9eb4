"""The sections of scripts/reproduce_opponents.py, a file each; a section gives Markdown, a text a table."""
