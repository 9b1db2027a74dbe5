"""Stands for sgl_kernel: what speculation on CPUs needs of it, in torch and in SGLang's Triton kernels, interpreted."""

from missing_package import Finder
from missing_package import missing_name as __getattr__  # noqa: F401

__path__: list[str] = []
__version__ = "0"
Finder(__name__)


def build_tree_kernel_efficient_cpu(*given):
    from sglang.kernels.ops.speculative import spec_tree

    spec_tree.sgl_build_tree_kernel_triton(*given)


def verify_tree_greedy_cpu(*, retrive_index, retrive_next_token, retrive_next_sibling, **more):
    from sglang.kernels.ops.speculative import spec_tree

    spec_tree.verify_tree_greedy_triton(
        retrieve_index=retrive_index, retrieve_next_token=retrive_next_token,
        retrieve_next_sibling=retrive_next_sibling, **more,
    )  # fmt: skip


def _beside(slots, rows, table, starts, ends):
    """Pairs of the places of each sequence in a table, and as many of the slots."""
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield table[row, start:end], slots[: end - start]
        slots = slots[end - start :]


def assign_req_to_token_pool_cpu(rows, table, starts, ends, new, _width):
    for places, slots in _beside(new, rows, table, starts, ends):
        places.copy_(slots)


def assign_extend_cache_locs_cpu(rows, table, starts, ends, out, _width):
    for places, slots in _beside(out, rows, table, starts, ends):
        slots.copy_(places)


def assign_draft_cache_locs_contiguous_cpu(rows, table, lengths, out, width, topk, steps):
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, out, width)


def fill_bonus_tokens_cpu(tokens, accepted, out, width):
    out.copy_(tokens.view(-1, width).gather(1, accepted[:, None].long() - 1)[:, 0])


def fill_accept_out_cache_loc_cpu(accepted, slots, out):
    found = slots[accepted[accepted > -1].long()]
    out[: len(found)] = found


def copy_all_layer_kv_cache_cpu(*_given):
    """Does nothing: SGLang only warms it up, as SGLANG_NATIVE_MOVE_KV_CACHE has torch move rows."""
