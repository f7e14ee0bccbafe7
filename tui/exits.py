"""The program's exit codes."""

DONE = 0
FAILED = 1
USAGE = 2
"""The command line, a settings file, a theme or a session is not as it must be."""
MODEL = 3
"""The model cannot be loaded."""
MEMORY = 4
"""The answer would not fit in memory."""
INTERRUPTED = 130
"""^C, as shells have it."""
