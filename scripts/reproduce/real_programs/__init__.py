"""The sections of scripts/reproduce_real_programs.py, a file each; a section gives Markdown, a text a table."""
