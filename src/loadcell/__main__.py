"""`python -m loadcell` is `loadcell`."""

import sys

from loadcell.cli.main import main

sys.exit(main())
