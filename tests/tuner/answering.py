"""A process that answers as a worker of the tuner: answering.py TUNING TIMES, without a device.

TIMES are, by the number of the lane, the milliseconds of a call, or "wrong", "large", "dies", "hangs" or "late": in what it
does first, and "late" in its second time.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

lane = Path(os.environ["XEFLASH_TUNED"]).stem
what = json.loads(sys.argv[2]).get(lane, 1.0)
print(json.dumps({}), flush=True)
noise, times = random.Random(lane), 0
for line in sys.stdin:
    request = json.loads(line)
    times += request["do"] == "time"
    if what == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hangs" or (what == "late" and times > 1):
        time.sleep(100)
    if request["do"] == "describe":
        answer = {"tuning": sys.argv[1], "torch": "cpu"}
    elif what == "large":
        answer = {"status": "no memory", "note": "MemoryError: needs about 5 GB"}
    elif what == "wrong":
        answer = {"status": "wrong", "note": "wrong result"}
    elif request["do"] == "check":
        answer = {"status": "ok", "bits": what if isinstance(what, str) and what.startswith("bits") else ""}
    else:
        answer = {"status": "ok", "ms": (what if isinstance(what, float) else 1.0) * noise.uniform(0.98, 1.02)}
    print(json.dumps(answer), flush=True)
