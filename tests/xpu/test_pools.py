"""Memory pools of torch's XPU backend, host memory that copies read later, and graphs of whole models: as in torch."""

import threading

import pytest
import torch
import torch_xpu
from xeflash import sim

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]


def reserved():
    return torch.xpu.memory_reserved()


def make(value, count=1500):
    return torch.full((count,), float(value), device="xpu")


# ---- pools ---------------------------------------------------------------------------------------


def test_what_is_allocated_inside_belongs_to_the_pool(xpu):
    pool = torch.xpu.MemPool()
    with torch.xpu.use_mem_pool(pool):
        inside = make(1)
    outside = make(2)
    segments = {segment["address"]: segment for segment in pool.snapshot()}
    assert segments[inside.data_ptr()]["segment_pool_id"] == pool.id
    assert outside.data_ptr() not in segments
    if torch_xpu.installed():  # torch's own rounds
        assert segments[inside.data_ptr()]["allocated_size"] == inside.nbytes


def test_others_do_not_get_its_blocks_and_it_gets_none_of_theirs(xpu):
    pool = torch.xpu.MemPool()
    with torch.xpu.use_mem_pool(pool):
        address = make(1).data_ptr()
    outside = make(2)
    assert outside.data_ptr() != address
    free = outside.data_ptr()
    del outside
    with torch.xpu.use_mem_pool(pool):
        first, second = make(3), make(4)
    assert first.data_ptr() == address and second.data_ptr() not in (address, free)


def test_the_innermost_pool_of_the_thread_is_used(xpu):
    pools = [torch.xpu.MemPool() for _ in range(2)]
    made = []
    with torch.xpu.use_mem_pool(pools[0]):
        made += [(make(1), 0)]
        with torch.xpu.use_mem_pool(pools[1]):
            made += [(make(2), 1)]
            thread = threading.Thread(target=lambda: made.append((make(3), None)))
            thread.start()
            thread.join()
        made += [(make(4), 0)]
    for tensor, owner in made:
        owners = [i for i, pool in enumerate(pools) if tensor.data_ptr() in {s["address"] for s in pool.snapshot()}]
        assert owners == ([] if owner is None else [owner])


def test_uses_are_counted_and_the_last_takes_the_memory_with_it(xpu):
    torch.xpu.synchronize()
    torch.xpu.empty_cache()
    before = reserved()
    pool = torch.xpu.MemPool()
    assert pool.use_count() == 1
    with torch.xpu.use_mem_pool(pool):
        assert pool.use_count() == 2
        kept, freed = make(1), make(2)
    assert pool.use_count() == 1
    del freed
    torch.xpu.empty_cache()
    assert reserved() - before >= 2 * kept.nbytes, "a pool's blocks are not of the cache"
    del pool
    assert kept.nbytes <= reserved() - before < 2 * kept.nbytes
    assert kept.cpu().eq(1).all()
    del kept
    torch.xpu.empty_cache()
    assert reserved() == before


def test_a_pool_is_not_entered_twice(xpu):
    pool = torch.xpu.MemPool()
    with torch.xpu.use_mem_pool(pool), pytest.raises(RuntimeError, match="already recording to mempool_id"):
        torch._C._xpu_beginAllocateCurrentThreadToPool(torch.xpu.current_device(), pool.id)
    with pytest.raises(RuntimeError, match="not currently recording to mempool_id"):
        torch._C._xpu_endAllocateToPool(torch.xpu.current_device(), pool.id)


@pytest.mark.parametrize(("options", "text"), [({"use_on_oom": True}, "use_on_oom"), ({"allocator": 1}, "allocator")])
def test_what_the_stand_in_lacks_is_refused(xpu, options, text):
    if not torch_xpu.installed():
        pytest.skip("torch has an XPU backend of its own")
    with pytest.raises(NotImplementedError, match=f"MemPool: {text} must be"):
        torch.xpu.MemPool(**options)


# ---- graphs that share one -----------------------------------------------------------------------


def captured(work, **how):
    graph = torch.xpu.XPUGraph()
    with torch.xpu.graph(graph, **how):
        out = work()
    return graph, out


@pytest.mark.parametrize("kind", ["handle", "graph", "MemPool"])
def test_graphs_share_a_pool(xpu, kind):
    """What the first has freed while it was captured is the second's; results that live are not."""
    x = make(3)
    owner = torch.xpu.MemPool()

    def work():
        between = torch.zeros_like(x)
        addresses.append(between.data_ptr())
        between.copy_(x)
        return torch.empty_like(x).copy_(between)

    addresses = []
    pool = {"handle": torch.xpu.graph_pool_handle(), "graph": None, "MemPool": owner.id}[kind]
    first, a = captured(work, **({} if pool is None else {"pool": pool}))
    second, b = captured(work, pool=pool or first.pool())
    other, c = captured(work)
    assert second.pool() == first.pool() != other.pool()
    assert addresses[0] == addresses[1] != addresses[2]
    assert len({tensor.data_ptr() for tensor in (a, b, c)}) == 3
    for turn in range(2):
        x.fill_(turn)
        for graph in (first, second, other):
            graph.replay()
        assert all(tensor.eq(turn).all() for tensor in (a.cpu(), b.cpu(), c.cpu()))
    first.reset()
    x.fill_(9)
    second.replay()
    assert b.cpu().eq(9).all() and a.cpu().eq(1).all()
    if kind == "MemPool":
        assert owner.use_count() == 2
        second.reset()
        assert owner.use_count() == 1


def test_operators_of_the_cpu_in_a_graph(xpu):
    """Of tensors, of lists of them, in place, of results that are given, and with a type of their own."""
    x, index = torch.randn(4, 6, device="xpu"), torch.tensor([2, 0], device="xpu")

    def work(x):
        y = torch.cat([x @ x.mT, x], dim=1)
        y += y[:, :1].exp()
        y[index] = x.new_ones(10)
        y = torch.split(y, [3, 7], 1)[1].to(torch.float16).float()
        return torch.max(y.masked_fill(y < 0, -1), dim=0), torch.arange(3, device=x.device), x[0, 0]

    def flat(results):
        return [*results[0], *results[1:]]

    graph, out = captured(lambda: work(x))
    for turn in range(3):
        x.copy_(torch.randn(4, 6))
        graph.replay()
        for got, want in zip(flat(out), flat(work(x)), strict=True):
            assert torch.equal(got.cpu(), want.cpu()), turn
    graph.reset()


def test_a_read_on_the_host_is_refused_in_a_graph(xpu):
    x = make(1)
    with pytest.raises(RuntimeError), torch.xpu.graph(torch.xpu.XPUGraph()):
        x.sum().item()


# ---- pinned memory -------------------------------------------------------------------------------


def test_a_copy_of_pinned_memory_is_on_the_stream(xpu):
    """It reads what the host writes before it runs, and does not run before what the stream waits for."""
    host = torch.ones(3000).pin_memory()
    assert host.is_pinned() and not torch.ones(3).is_pinned()
    side = torch.xpu.Stream()
    with torch.xpu.stream(side):
        there = host.to("xpu", non_blocking=True)
        if sim.enabled():  # where nothing runs before somebody waits
            host.fill_(2)
        back = torch.empty_like(host).pin_memory()
        back.fill_(7)
        back.copy_(there, non_blocking=True)
        if sim.enabled():
            assert back.eq(7).all()
    side.synchronize()
    assert back.eq(2 if sim.enabled() else 1).all()


def test_copies_of_other_memory_wait(xpu):
    """A target that torch makes for a copy that does not block is pinned, though."""
    host, back = torch.ones(3000), torch.zeros(3000)
    there = host.to("xpu", non_blocking=True)
    host.fill_(2)
    assert back.copy_(there, non_blocking=True).eq(1).all()
    made = there.to("cpu", non_blocking=True)
    assert made.is_pinned()
    torch.xpu.current_stream().synchronize()
    assert made.eq(1).all()


def test_pinned_memory_is_kept_until_its_copies_are_done(xpu):
    host = torch.ones(3000).pin_memory()
    address, side = host.data_ptr(), torch.xpu.Stream()
    with torch.xpu.stream(side):
        there = host[8:].to("xpu", non_blocking=True)  # a view is of the same block
    del host
    other = torch.full((3000,), 5.0).pin_memory()
    if sim.enabled():
        assert other.data_ptr() != address
    side.synchronize()
    assert there.cpu().eq(1).all()
    assert torch.empty(3000, pin_memory=True).data_ptr() == address, "torch's cache gives it out again"
