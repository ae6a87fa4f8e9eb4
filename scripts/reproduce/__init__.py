"""What the launchers in scripts/ share."""
