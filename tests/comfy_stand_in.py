"""A stand-in for ComfyUI's module comfy.ldm.modules.attention: what its attention functions are called by, as it says."""

import functools

from torch.nn.functional import scaled_dot_product_attention

REGISTERED_ATTENTION_FUNCTIONS = {}
INSIDE = "_inside_attn_wrapper"


def register_attention_function(name, func):
    """The first of a name stays."""
    REGISTERED_ATTENTION_FUNCTIONS.setdefault(name, func)


def get_attention_function(name):
    return REGISTERED_ATTENTION_FUNCTIONS[name]


def wrap_attn(func):
    """The outermost call asks the options for an override, which gets the function, too."""

    @functools.wraps(func)
    def wrapped(*given, **named):
        options = named.get("transformer_options") or {}
        override = None if INSIDE in named else options.get("optimized_attention_override")
        named[INSIDE] = True
        return func(*given, **named) if override is None else override(func, *given, **named)

    return wrapped


@wrap_attn
def attention_pytorch(
    q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **named
):
    if not skip_reshape:
        width = q.shape[-1] // heads
        q, k, v = (x.reshape(*x.shape[:2], -1, width).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape) if mask.dim() != 3 else mask[:, None]
    named = {name: named[name] for name in ("scale", "enable_gqa") if name in named}
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, **named)
    return out if skip_output_reshape else out.transpose(1, 2).reshape(len(q), -1, heads * q.shape[-1])


class ModelPatcher:
    """Of comfy.model_patcher: what nodes hand on as a MODEL."""

    def __init__(self):
        self.model_options = {"transformer_options": {}}

    def clone(self):
        other = ModelPatcher()
        other.model_options["transformer_options"].update(self.model_options["transformer_options"])
        return other
