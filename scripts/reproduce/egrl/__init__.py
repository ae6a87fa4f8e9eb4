"""The sections of scripts/reproduce_egrl.py, a file each; a section gives Markdown, a text a table."""
