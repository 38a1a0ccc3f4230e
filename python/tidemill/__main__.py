"""`python -m tidemill` and the installed script are the `tidemill` command."""

import signal
import sys

from tidemill import main


def run() -> None:
    """Entry point of the script."""
    # Verbs take Ctrl-C for themselves; Python's handler would raise KeyboardInterrupt after them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())


if __name__ == "__main__":
    run()
