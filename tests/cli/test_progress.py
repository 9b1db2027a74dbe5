"""Progress of a long command, as a log without a terminal gets it."""

import time

from xeflash.bench.progress import Progress


def lines_until(capsys, wanted, seconds=10.0):
    text, end = "", time.monotonic() + seconds
    while wanted not in text and time.monotonic() < end:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text


def test_a_log_gets_a_line_from_time_to_time_and_each_fault_at_once(capsys):
    with Progress("xeflash selftest", seconds=0.05) as progress:
        progress.begin("checking", 3)
        progress.advance()
        assert "xeflash selftest: 1 of 3 cases (checking), " in lines_until(capsys, "1 of 3")
        progress.advance("[case]: wrong: " + 200 * "x")
        text = lines_until(capsys, "2 of 3")
        assert f"[case]: wrong: {200 * 'x'}\n" in text and "2 of 3 cases (checking), 1 not ok, " in text
        progress.begin("timing", 5)
        progress.describe("timing a")
        assert "0 of 5 cases (timing a), 1 not ok" in lines_until(capsys, "timing a")
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""
