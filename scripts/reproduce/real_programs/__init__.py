"""Tables on real programs, one or two in a file: docs/systems/programs.md."""
