"""The tables on real programs, a file a table or two: docs/systems/programs.md."""
