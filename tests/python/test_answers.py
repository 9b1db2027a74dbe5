"""The program that compares two versions of xeflash by their answers to many calls."""

import answers
import pytest


@pytest.mark.parametrize("label", answers.CALLS)
def test_calls_whose_arguments_are_replaced_work(label):
    name, given = answers.CALLS[label]
    found = answers.answer(name, given, "plain")
    assert not answers.is_error(found), found
    assert found == answers.answer(name, given, "plain")


def test_a_refusal_is_an_answer():
    name, given = answers.CALLS["flash"]
    found = answers.answer(name, {**given, "softcap": -1}, "plain")
    assert found[0] == "ValueError" and found[1].startswith("flash_attn_func: softcap must be")


def test_differences_are_told_by_their_kind(capsys):
    error, result, other = ["ValueError", "f: x must be 1"], [["hash"]], [["another"]]
    before = {"same|plain|x|1": result, "a|plain|x|1": result, "b|plain|x|1": result, "c|plain|x|1": error}
    before |= {"d|plain|x|1": error, "e|plain|x|1": error}
    after = {**before, "a|plain|x|1": other, "b|plain|x|1": error, "c|plain|x|1": result}
    after |= {"d|plain|x|1": ["ValueError", "f: y must be 1"], "e|plain|x|1": ["TypeError", "f: x must be 1"]}
    kinds = answers.compare(before, after, most=1)
    assert {kind: labels[0][0] for kind, labels in kinds.items()} == {
        "result": "a", "a new error": "b", "no error any more": "c", "text": "d", "error": "e",
    }  # fmt: skip
    assert "6 calls compared, 0 in one record alone" in capsys.readouterr().out
    assert not answers.compare(before, before, most=1)
