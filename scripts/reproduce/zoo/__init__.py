"""The programs of the zoo: which architectures, and how each becomes graphs."""
