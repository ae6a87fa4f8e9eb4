"""The sections of scripts/reproduce_topoformer.py, a file each; a section gives Markdown, a text a table."""
