"""`python -m scalerlt`: the same door as the command `scalerlt`."""

import sys

from scalerlt.cli import main

sys.exit(main())
