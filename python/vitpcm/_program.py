"""The command `vitpcm`, as pip installs it: the same program, in this process."""

import sys

from ._native import run_program


def main() -> int:
    """Run the command line; returns the exit code."""
    return run_program(["vitpcm", *sys.argv[1:]])
