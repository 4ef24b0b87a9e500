"""`python -m vitpcm`: the command, where the console script is not on the path."""

import sys

from ._program import main

if __name__ == "__main__":
    sys.exit(main())
