"""The sections of scripts/reproduce_regal.py; a section gives Markdown, a text a table."""
