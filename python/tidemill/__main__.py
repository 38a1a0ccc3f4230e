"""`python -m tidemill` and the installed script are the `tidemill` command."""

import sys

from tidemill import main


def run() -> None:
    """Entry point of the script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
