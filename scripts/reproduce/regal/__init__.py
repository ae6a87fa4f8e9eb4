"""The sections of scripts/reproduce_regal.py, a file each; a section gives Markdown, a text a table."""
