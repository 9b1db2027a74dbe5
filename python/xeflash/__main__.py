"""`python -m xeflash` is the console script `xeflash`."""

import sys

from xeflash.cli import main

if __name__ == "__main__":
    sys.exit(main())
