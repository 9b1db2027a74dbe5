"""Random calls of every public function: each gives the right answer, or is refused clearly when it is invalid.

A case is all that follows from a seed and its number: which function, by which way (the function itself, below a
dispatch mode of torch, torch's operator), on which arrays, with which features. Most cases are valid by the documented
rules; in the others one thing is wrong. So the outcome is known beforehand:

- a valid call gives what xeflash.selftest.reference says, within the limit of tests/tolerance.py;
- gradients are what tests/gradients.py says, the same bits each time;
- an invalid one raises ValueError, TypeError or NotImplementedError, and the message begins with the name of the
  function and names an argument;
- in any case memory beside arrays stays as it was, inputs do, too, and of results only the elements are written.

Arrays in host memory lie against a page that may not be touched. Calls run in a process of their own, which notes each
case before it begins, so that a crash is reported with its number.

    python -m tests.fuzz --cases 10000            # on the CPU; --sim bmg: on a simulated GPU
    python -m tests.fuzz --seed 7 --case 123      # one again, with its arguments
"""

import sys
from pathlib import Path

if (folder := str(Path(__file__).parent.parent)) not in sys.path:
    sys.path.insert(0, folder)  # where the modules are that all tests share, as pytest has it
