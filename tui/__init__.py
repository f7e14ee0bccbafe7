"""veloxquant-tui: the terminal program."""
