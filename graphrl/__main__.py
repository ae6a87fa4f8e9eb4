"""`python -m graphrl` is the `graphrl` command."""

import sys

from graphrl.cli import main

sys.exit(main())
