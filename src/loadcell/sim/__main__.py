"""`python -m loadcell.sim`: the simulated engine without the rest of the command line."""

import sys

from loadcell.errors import LoadcellError
from loadcell.sim.flags import spec_from_argv
from loadcell.sim.process import run


def main() -> int:
    try:
        return run(spec_from_argv(sys.argv[1:]))
    except LoadcellError as error:
        print(f"loadcell simulate: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
