"""The process that calls: it draws a case when it is asked, then says what became of it, a line of JSON each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import Any

from .run import Run


def work(run: Run) -> None:
    """Before torch is imported: it looks for devices once."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not ours
    simulated = run.device not in ("cpu", "gpu")
    if simulated:
        import torch_xpu
        from xeflash import sim

        sim.enable(run.device)
        torch_xpu.install()
    import torch

    from .case import Case, Wrong, perform
    from .generate import KINDS, make
    from .known import known_fault

    torch.set_num_threads(1)

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")

    def outcome_of(case: Case) -> tuple[str, str]:
        try:
            outcome = perform(case)
            raise_findings()
            return outcome, ""
        except Wrong as error:
            known = "" if run.unmasked else known_fault(str(error))
            return ("known", known) if known else ("wrong", str(error))
        except Exception:
            found = sim.last_fault() if simulated else ""  # what reads a result may be the first to hear of it
            return "wrong", found or "the test itself failed:\n" + traceback.format_exc()
        finally:
            with contextlib.suppress(Exception):
                raise_findings()  # they belong to this case alone

    def raise_findings() -> None:
        """What the simulator found is a fault, even if no call raised."""
        if simulated:
            torch.xpu.synchronize()
            fault = sim.last_fault()
            sim.clear_fault()
            if fault:
                raise Wrong(fault)

    kinds = KINDS["cpu" if run.device == "cpu" else "gpu"]
    say(ready=True)
    case: Case | None = None
    for line in sys.stdin:
        if "draw" in (request := json.loads(line)):
            try:
                case = make(run.seed, request["draw"], kinds, run.width)
                say(function=case.function)
            except Exception:
                say(function="?", outcome="wrong", text="drawing it failed:\n" + traceback.format_exc())
        elif case:
            outcome, text = outcome_of(case)
            say(outcome=outcome, text=text, **({"case": str(case)} if run.cases == 1 else {}))
