"""The command line, as `kvant` and `python -m kvant`."""

import signal
import sys

from kvant import _kvant
from kvant._run import introduce


def main() -> None:
    """Carries out the command line of this process and exits with its code: 0, 1, 2, or 130 after Ctrl-C."""
    # The command line has its own handler, which lets a run stop where it can be resumed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    introduce()
    sys.exit(_kvant.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
