"""The `tidemill` command: entry point of `python -m tidemill` and of the installed script."""

import signal
import sys

from tidemill import main


def run() -> None:
    """Runs the command line and exits with its code."""
    # Verbs handle Ctrl-C themselves; Python's handler would raise KeyboardInterrupt after them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())


if __name__ == "__main__":
    run()
