"""Work for ranks that tests start: python launched.py WHAT FOLDER."""

import os
import signal
import sys
import time
from pathlib import Path

from xeflash.bench.distributed.launch import launch


def raises(folder):
    if os.environ["RANK"] == "1":
        raise ValueError("something is broken here")
    time.sleep(60)


def is_killed(folder):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def waits(folder):
    Path(folder, os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)


def returns(folder):
    return int(os.environ["RANK"])


if __name__ == "__main__":
    try:
        sys.exit(launch(globals()[sys.argv[1]], (sys.argv[2],), 2))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
