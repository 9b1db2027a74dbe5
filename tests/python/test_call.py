"""The object that a call is: its copies, what it is without its tensors, and the words of its errors."""

import pytest
import torch
import xeflash
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, BSHD

Q, X = torch.ones(1), torch.ones(2)


def test_copies_leave_the_call_as_it_is():
    call = Call({"function": "f", "layout": BSHD, "q": Q, "k": X})
    other = call.with_("k", words={"q": "query"}, k_cache=X, q=X)
    assert call.arguments == {"function": "f", "layout": BSHD, "q": Q, "k": X} and call.word("q") == "q"
    assert other.arguments == {"function": "f", "layout": BSHD, "q": X, "k_cache": X} and other.word("q") == "query"
    assert (call.form, other.form) == ("d", "c")


def test_what_is_given_wins_over_what_is_left_out():
    assert Call({"q": Q}).with_("q", q=X)["q"] is X
    assert Call({"residual": False}).joined([], [], "residual", residual=X)["residual"] is X


def test_a_call_is_put_together_of_what_it_was_taken_apart():
    captures = {"n": 2.0, "x": X}
    call = Call({"function": "f", "layout": BHSD, "q": Q, "score_mod": "s * x[h] * n", "captures": captures})
    rest, names, tensors = call.apart(torch.Tensor, return_lse=True)
    assert names == ["q", "captures['x']"] and tensors[0] is Q and tensors[1] is X
    assert rest.arguments == {
        "function": "f", "layout": BHSD, "score_mod": "s * x[h] * n", "captures": {"n": 2.0}, "return_lse": True,
    }  # fmt: skip
    whole = rest.joined(names, tensors, "return_lse")
    assert whole["q"] is Q and whole["captures"] == captures and "return_lse" not in whole


def test_arguments_may_be_left_to_their_defaults():
    call = Call({"function": "f", "q": Q, "softcap": None, "k": None, "scale": 0})
    assert call.without_none("softcap", "scale", "v").arguments == {"function": "f", "q": Q, "k": None, "scale": 0}
    assert call.without_none("scale") is call


def test_a_refusal_names_the_argument_of_the_caller():
    call = Call({"function": "f", "layout": BSHD, "q": Q, "s_aux": 3}, {"s_aux": "sinks"})
    assert str(call.refuse("s_aux", "must be an array", 3)) == "f: sinks must be an array, got 3"
    assert isinstance(call.refuse_given("s_aux", "must be None"), NotImplementedError)


def test_a_signature_without_a_body_says_so():
    @public(BSHD)
    def nothing(q):
        """Does nothing."""

    with pytest.raises(NotImplementedError, match="nothing: a body must follow the signature"):
        nothing(Q)


def test_errors_of_newer_words_name_them():
    q = torch.ones(1, 2, 2, 64)
    with pytest.raises(ValueError, match="^flash_attn_func: learnable_sink must have shape"):
        xeflash.flash_attn_func(q, q, q, learnable_sink=torch.ones(3))
