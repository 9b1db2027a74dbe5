"""XeCache holds what DynamicCache holds, and copies nothing to append or to reorder."""

import copy
import gc
import pickle
import weakref
from itertools import product

import pytest
import torch
import transformers
from cover import few, few_rows
from tiny_models import DECODERS, SHAPE, WAYS, WINDOW, LargestResult, decoder, given_cache, prompts, random_weights
from tolerance import check_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from xeflash.integrations.transformers import NAME, XeCache, attention_function, register
from xeflash.integrations.xe_cache import columns
from xeflash.selftest.attention.nibbles import unpacked
from xeflash.selftest.reference import Features

register()

CONFIG = DECODERS["qwen2"]  # a layer without and one with a window
HEADS, DIM = 2, 64


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    """Caches have to grow all the time."""
    monkeypatch.setattr(columns, "SPARE", 1)


def new_states(rows, tokens, dim=DIM):
    return torch.randn(rows, HEADS, tokens, dim), torch.randn(rows, HEADS, tokens, dim)


def same_states(caches, rows, tokens):
    """Gives all caches the same new states; what each hands out."""
    handed_out = []
    for layer in range(2):
        states = new_states(rows, tokens)
        handed_out.append([cache.update(*states, layer) for cache in caches])
    return handed_out


class Pair:
    """An XeCache and a DynamicCache to which the same happens."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.both = (XeCache(CONFIG), transformers.DynamicCache(config=CONFIG))
        self.rows, self.last = 3, 0

    def draw(self, n, *shape):
        return torch.randint(n, shape, generator=self.generator)

    def update(self, tokens=1):
        sizes = [[cache.get_mask_sizes(tokens, layer) for layer in range(2)] for cache in self.both]
        assert sizes[0] == sizes[1]
        for ours, theirs in same_states(self.both, self.rows, tokens):
            for got, want in zip(ours, theirs, strict=True):
                assert got.shape == want.shape
                if self.draw(2):
                    assert torch.equal(got.tensor(), want)
        self.last = tokens

    def update_with_many(self):
        self.update(1 + int(self.draw(12)))

    def reorder(self):
        order = self.draw(self.rows, self.rows)
        for cache in self.both:
            cache.reorder_cache(order)

    def crop(self):
        if self.last and self.both[0].get_seq_length() < WINDOW:  # DynamicCache cannot beyond
            for cache in self.both:
                cache.crop(-self.last)
        self.last = 0
        self.compare()

    def repeat(self):
        if self.rows < 8:
            for cache in self.both:
                cache.batch_repeat_interleave(2)
            self.rows *= 2

    def select(self):
        self._select(self.draw(self.rows, 1 + int(self.draw(3))))

    def select_by_mask(self):
        self._select(self.draw(2, self.rows).bool() | (torch.arange(self.rows) == 0))

    def _select(self, chosen):
        for cache in self.both:
            cache.batch_select_indices(chosen)
        self.rows = len(torch.arange(self.rows)[chosen])

    def copy(self):
        self.both = copy.deepcopy(self.both)

    def reset(self):
        for cache in self.both:
            cache.reset()
        self.rows = 3

    def compare(self):
        ours, theirs = self.both
        assert ours.get_seq_length() == theirs.get_seq_length()
        if theirs.get_seq_length():
            for got, want in zip(ours.layers, theirs.layers, strict=True):
                assert torch.equal(got.keys, want.keys)
                assert torch.equal(got.values, want.values)
        else:
            self.rows = 3
            theirs.reset()


OPERATIONS = (
    *(Pair.update, Pair.update, Pair.update, Pair.update_with_many, Pair.reorder, Pair.reorder, Pair.crop),
    *(Pair.repeat, Pair.select, Pair.select_by_mask, Pair.copy),
)


@pytest.mark.parametrize("seed", range(20))
def test_holds_what_dynamic_cache_holds(seed):
    pair = Pair(seed)
    for step in range(40):
        operation = OPERATIONS[int(pair.draw(len(OPERATIONS)))]
        if step % 20 == 0:
            pair.reset()
            operation = Pair.update_with_many
        operation(pair)
        if pair.draw(2):
            pair.compare()


def test_writes_each_row_its_own_after_a_crop(monkeypatch):
    monkeypatch.setattr(columns, "SPARE", 64)
    pair = Pair(0)
    pair.update(4)
    pair.update()
    for cache in pair.both:
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        cache.crop(-1)
    pair.update()
    pair.compare()


def generated(model, implementation, cache, padded=True, tokens=20, beams=4):
    model.set_attn_implementation(implementation)
    return model.generate(
        **prompts(padded=padded), num_beams=beams, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens,
        **given_cache(cache),
    )  # fmt: skip


@pytest.mark.parametrize("name", few(DECODERS, "gemma2", "gpt_oss"))
def test_grows_and_passes_windows(name):
    model, beams = decoder(name), 1 if name == "gemma2" else 4
    want = generated(model, "eager", transformers.DynamicCache(config=model.config), beams=beams)
    cache = XeCache(model.config)
    assert torch.equal(generated(model, NAME, cache, beams=beams), want)
    for layer in cache.layers:
        if layer.is_sliding:
            assert layer.columns.count <= 2 * WINDOW + 13 and layer.left_behind


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_other_attention_takes_its_states(implementation):
    model = decoder("qwen2")
    want = generated(model, implementation, transformers.DynamicCache(config=model.config))
    assert torch.equal(generated(model, implementation, XeCache(model.config)), want)


TOUCHES = {
    "method": lambda k: k.clone(),
    "function": lambda k: torch.mul(k, 1),
    "operator": lambda k: 2 * k - k,
    "index": lambda k: k[:, :, :],
    "argument in a list": lambda k: torch.cat([k, k[:, :, :0]], 2),
    "attribute": lambda k: k.mT.mT,
}


@pytest.mark.parametrize("what", TOUCHES)
def test_model_may_touch_states(what):
    def touching(module, query, key, value, *args, **kwargs):
        for touched in ((TOUCHES[what](key), value), (key, TOUCHES[what](value))):
            out = attention_function(module, query, *touched, *args, **kwargs)
        return out

    AttentionInterface.register("touching", touching)
    transformers.AttentionMaskInterface.register("touching", transformers.AttentionMaskInterface()[NAME])
    model = decoder("qwen2")
    want = generated(model, "eager", transformers.DynamicCache(config=model.config))
    assert torch.equal(generated(model, "touching", XeCache(model.config)), want)


def test_states_that_a_later_layer_shares():
    cache = XeCache(CONFIG)
    for tokens in (5, 1):
        key, value = cache.update(*new_states(2, tokens), 0)
        query = torch.randn(2, 4, tokens, DIM)
        once, again = (attention_function(torch.nn.Module(), query, key, value, None)[0] for _ in range(2))
        assert torch.equal(once, again)
    assert cache.get_seq_length() == 6


def test_states_of_an_earlier_step_are_refused():
    cache = XeCache(CONFIG)
    key, value = cache.update(*new_states(2, 5), 0)
    cache.update(*new_states(2, 1), 0)
    with pytest.raises(RuntimeError, match="must be used before"):
        attention_function(torch.nn.Module(), torch.randn(2, 4, 5, DIM), key, value, None)
    with pytest.raises(RuntimeError, match="must be used before"):
        key + 1


def test_padding_that_is_not_on_the_left():
    """A conversation continued after prompts of different lengths."""
    model, ids = decoder("qwen2"), prompts(tokens=20)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, 8:13] = 0
    mask[1, 11:13] = 0

    def logits(implementation, cache):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            first = model(ids[:, :13], attention_mask=mask[:, :13], **given_cache(cache)).logits
            return torch.cat([first, model(ids[:, 13:], attention_mask=mask, **given_cache(cache)).logits], 1)[
                mask.bool()
            ]

    want = logits("eager", transformers.DynamicCache(config=model.config))
    torch.testing.assert_close(logits(NAME, XeCache(model.config)), want, rtol=1e-5, atol=1e-4)


def test_keys_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(columns, "SPARE", 64)
    model, cache = decoder("llama"), XeCache(DECODERS["llama"])
    places = []
    reorder = XeCache.reorder_cache

    def watched(self, beam_idx):
        with LargestResult() as result:
            reorder(self, beam_idx)
        assert result.elements <= 8 * cache.layers[0].columns.count  # the table: of 8 rows
        places.append([array.data_ptr() for layer in self.layers for array in layer._arrays])

    monkeypatch.setattr(XeCache, "reorder_cache", watched)
    generated(model, NAME, cache)
    assert len(places) == 20 and all(place == places[0] for place in places)


class BytesCopied(TorchDispatchMode):
    """What torch's operations write that copy K and V whole, or reorder."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.__name__.split(".")[0] in ("cat", "index_select", "index", "copy_", "clone", "repeat"):
            self.bytes += sum(t.nbytes for t in tree_leaves(out) if isinstance(t, torch.Tensor))
        return out


def bytes_of_a_step(cache, rows=8, keys=1000):
    for layer in range(2):
        cache.update(*new_states(rows, keys), layer)[0].clone()
    cache.reorder_cache(torch.arange(rows).flip(0))
    with BytesCopied() as copied:
        for layer in range(2):
            key, value = cache.update(*new_states(rows, 1), layer)
            attention_function(torch.nn.Module(), torch.randn(rows, 4, 1, DIM), key, value, None)
        cache.reorder_cache(torch.arange(rows).flip(0))
    return copied.bytes


def test_bytes_copied_in_a_step_of_beam_search(monkeypatch):
    monkeypatch.setattr(columns, "SPARE", 64)
    states = 2 * 2 * 8 * HEADS * 1001 * DIM * 4  # layers, K and V
    assert bytes_of_a_step(transformers.DynamicCache(config=DECODERS["llama"])) >= 2 * states  # appended, reordered
    assert bytes_of_a_step(XeCache(DECODERS["llama"])) <= 2 * 8 * 1001 * 4 + 100  # the table


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
STEPS = {
    torch.int8: 1 / 254,
    "k8v4": 1 / 254,
    torch.float8_e4m3fn: 1 / 28,
    torch.float8_e5m2: 1 / 14,
}  # half the widest


@pytest.mark.parametrize(("dtype", "beams"), few_rows(product(EIGHT_BITS, (1, 4)), (torch.int8, 1)))
def test_eight_bits(dtype, beams):
    model = decoder("qwen2")
    cache = XeCache(model.config, dtype=dtype)
    ours = generated(model, NAME, cache, beams=beams)
    assert torch.equal(ours, generated(model, "sdpa", XeCache(model.config, dtype=dtype), beams=beams))
    assert all(array.dtype in (dtype, torch.float32) for layer in cache.layers for array in layer._arrays)
    states = new_states(2, 5)
    for kept, new in zip(XeCache(model.config, dtype=dtype).update(*states, 0), states, strict=True):
        less = new.mean((0, 2), keepdim=True) * (new is states[0])
        largest = (new - less).abs().amax(-1, keepdim=True)
        assert ((kept - new).abs() <= largest * STEPS[dtype] * 1.001).all()


FEWER_BITS = (*EIGHT_BITS, "k8v4")
SHAPES = {**dict.fromkeys(EIGHT_BITS, (torch.float32, DIM)), "k8v4": (torch.bfloat16, 128)}  # of kernels of other tests
FORMS = {
    "plain": ({}, {}),
    "sinks": ({"s_aux": torch.tensor([0.5, -1.0, 2.0, 1.0])}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 1.0])}),
    "softcap": ({"softcap": 3.0}, {"softcap": 3.0}),
}


def held(layer):
    """The keys and values of a layer without a window, in float64."""
    k, v, *scales = (array[:, :, : layer.used] for array in layer._arrays)
    k = k.double() * scales[0][..., None] + (0.0 if layer._mean is None else layer._mean.double())
    if v.dtype == torch.uint8:
        return k, torch.from_numpy(unpacked(v.numpy(), scales[1].numpy()))
    return k, v.double() * scales[1][..., None]


@pytest.mark.parametrize(
    ("dtype", "form", "written_by_others"),
    few_rows(
        product(FEWER_BITS, FORMS, (False, True)),
        *(("k8v4", form, False) for form in ("plain", "sinks")),
        *(("k8v4", "plain", True), (torch.int8, "sinks", True)),
    ),
)
def test_attention_is_that_of_what_is_kept(dtype, form, written_by_others):
    """Where keys have much in common, but with sinks and softcap, which have to see the scores themselves."""
    given, features = FORMS[form]
    cache, module = XeCache(DECODERS["llama"], dtype=dtype), torch.nn.Module()
    model, dim = SHAPES[dtype]
    common = 50 * torch.randn(1, HEADS, 1, dim)
    for tokens in (17, 1, 1):
        key, value = new_states(2, tokens, dim)
        key = (key + common).to(model)
        states = cache.update(key, value.to(model), 0)
        if written_by_others and tokens > 1:
            states[0].tensor()
        query = 0.1 * torch.randn(2, 4, tokens, dim, dtype=model)
        out = attention_function(module, query, *states, None, **given)[0].transpose(1, 2)
        layer = cache.layers[0]
        assert (layer._mean is None) == (form != "plain" and not written_by_others)
        exact = held(layer)
        if layer._mean is not None and form != "plain":  # attention is given tensors
            exact = tuple(x.to(model) for x in exact)
        check_attention(f"{tokens} tokens", query, *exact, Features(window=(-1, 0)).with_(**features), out)
        if layer._mean is not None:
            assert (held(layer)[0][:, :, -tokens:] - key).abs().max() < 6 * STEPS[dtype]


def test_keys_are_whole_where_attention_on_tensors_needs_scores():
    cache = XeCache(DECODERS["llama"], dtype=torch.int8)
    layer, states = cache.layers[0], cache.update(*new_states(2, 5), 0)
    holes = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert layer.attend(torch.randn(2, 4, 5, DIM), 5, holes, (-1, -1), softcap=3.0) is None
    states[0].tensor()
    assert layer._mean is None
    cache.reset()
    cache.update(*new_states(2, 5), 0)[0].tensor()
    assert layer._mean is not None


@pytest.mark.wide
@pytest.mark.parametrize(("name", "beams"), [("llama", 1), ("mistral", 1), ("gemma2", 1), ("gemma2", 4)])
def test_values_in_four_bits(name, beams):
    model = decoder(name, dtype=torch.float16)
    cache = XeCache(model.config, dtype="k8v4")
    ours = generated(model, NAME, cache, beams=beams)
    assert torch.equal(ours, generated(model, "eager", XeCache(model.config, dtype="k8v4"), beams=beams))
    of_a_key = [[array[0, 0, 0].nbytes for array in layer._arrays] for layer in cache.layers]
    assert of_a_key == [[DIM, DIM // 2, 4, DIM // 32]] * 2


@pytest.mark.parametrize("dtype", few(FEWER_BITS, "k8v4"))
def test_rows_and_columns_of_quantised_states(dtype, monkeypatch):
    """They are moved, not quantised again."""
    monkeypatch.setattr(columns, "SPARE", 64)
    cache = XeCache(DECODERS["llama"], dtype=dtype)
    model, dim = SHAPES[dtype]
    first, second = (tuple(x.to(model) for x in new_states(3, tokens, dim)) for tokens in (5, 2))
    kept = [x.clone() for x in cache.update(*first, 0)]
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.update(*second, 0)[0].clone()
    cache.crop(-2)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3, 5]))
    for states, want in zip((cache.layers[0].keys, cache.layers[0].values), kept, strict=True):
        assert torch.equal(states, want[[2, 0, 0]])


def test_autocast():
    model, cache = decoder("qwen2"), XeCache(CONFIG)
    with torch.autocast("cpu", torch.bfloat16):
        tokens = generated(model, NAME, cache, tokens=5)
    assert tokens.shape == (2, 18)
    assert cache.layers[0]._arrays[0].dtype == torch.bfloat16


def test_memory_is_freed_with_the_cache():
    gc.collect()
    gc.disable()
    try:
        cache = XeCache(CONFIG)
        same_states((cache,), 2, 5)
        cache.reorder_cache(torch.tensor([1, 0]))
        layer = weakref.ref(cache.layers[0])
        del cache
        assert layer() is None
    finally:
        gc.enable()


def test_assisted_generation():
    model, assistant = decoder("llama", implementation=NAME), decoder("llama", seed=3)
    inputs = prompts(rows=1)
    want = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    cache = XeCache(model.config)
    got = model.generate(**inputs, max_new_tokens=12, do_sample=False, assistant_model=assistant, **given_cache(cache))
    assert torch.equal(got, want)


def test_prompt_is_shared_by_copies_of_the_cache():
    model = decoder("qwen2", implementation=NAME)
    inputs = prompts(rows=1, tokens=20)
    prompt = XeCache(model.config)
    with torch.no_grad():
        model(inputs["input_ids"][:, :12], **given_cache(prompt))
    want = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    for _ in range(2):
        got = model.generate(**inputs, max_new_tokens=5, do_sample=False, **given_cache(copy.deepcopy(prompt)))
        assert torch.equal(got, want)


def test_pickled_cache_goes_on():
    """A tensor and a view of it become two tensors."""
    cache = XeCache(DECODERS["llama"], dtype=torch.int8)
    cache.update(*new_states(2, 5), 0)[0].tensor()
    copied, new = pickle.loads(pickle.dumps(cache)), new_states(2, 1)
    for part in (0, 1):
        want, got = (x.update(*new, 0)[part].tensor().clone() for x in (cache, copied))
        assert torch.equal(got, want)
        cache.crop(-1), copied.crop(-1)


def test_infinities_stay_in_their_row():
    keys, values = new_states(2, 5)
    keys[1, :, 2], values[1, :, 2] = torch.inf, torch.inf
    cache = XeCache(DECODERS["llama"], dtype=torch.int8)
    kept = cache.update(keys, values, 0)
    for states, want in zip(kept, (keys, values), strict=True):
        assert (states[0] - want[0]).abs().max() < 6 * STEPS[torch.int8]


HYBRIDS = {
    "linear attention": transformers.Qwen3_5TextConfig(
        **SHAPE, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=8,
    ),
    "convolution": transformers.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"], block_multiple_of=16),
    "both in a layer": transformers.FalconH1Config(
        **SHAPE, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids(name, way):
    torch.manual_seed(0)
    model = random_weights(transformers.AutoModelForCausalLM.from_config(HYBRIDS[name]))
    arguments = {**prompts(padded=True), **WAYS[way], "min_new_tokens": 8, "max_new_tokens": 8}
    want = model.generate(**arguments)
    model.set_attn_implementation(NAME)
    assert torch.equal(model.generate(**arguments, **given_cache(XeCache(model.config))), want)


@pytest.mark.parametrize("name", HYBRIDS)
def test_rows_of_hybrids(name):
    """Prompts repeated and chosen from in the cache go on as if they had been so from the start."""
    torch.manual_seed(0)
    model = random_weights(transformers.AutoModelForCausalLM.from_config(HYBRIDS[name]))
    model.set_attn_implementation(NAME)
    ids, cache = prompts()["input_ids"], XeCache(model.config)
    chosen = torch.tensor([0, 3, 2])
    with torch.no_grad():
        want = model(ids.repeat_interleave(2, 0)[chosen]).logits[:, 12:]
        model(ids[:, :12], **given_cache(cache))
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(chosen)
        got = model(ids[[0, 1, 1], 12:], **given_cache(cache)).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


ENCODER = {"vocab_size": 97, "decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WITH_ENCODER = {
    "bart": transformers.BartConfig(
        **ENCODER, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, init_std=0.0625,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
    ),
    "t5": transformers.T5Config(**ENCODER, d_model=64, d_kv=64, d_ff=96, num_layers=2, num_heads=4),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_ENCODER)
def test_encoder_and_decoder(name):
    torch.manual_seed(0)
    config = WITH_ENCODER[name]
    model = random_weights(transformers.AutoModelForSeq2SeqLM.from_config(config))
    arguments = {**prompts(), **WAYS["beams"], "min_new_tokens": 5, "max_new_tokens": 5}
    want = model.generate(**arguments)
    model.set_attn_implementation(NAME)
    pair = transformers.EncoderDecoderCache(XeCache(config), transformers.DynamicCache(config=config))
    assert torch.equal(model.generate(**arguments, **given_cache(pair)), want)
    with pytest.raises(TypeError, match=r"must get EncoderDecoderCache\(XeCache.* layer 0 gives keys twice"):
        model.generate(**arguments, **given_cache(XeCache(config)))


def test_max_length():
    cache = XeCache(DECODERS["llama"], max_cache_len=7)
    same_states((cache,), 2, 5)
    assert cache.layers[0]._arrays[0].shape[2] == 7 and cache.get_max_length() == 7
    with pytest.raises(ValueError, match="max_cache_len must be at least 8, the number of keys, got 7"):
        same_states((cache,), 2, 3)
    same_states((cache,), 2, 2)


def test_errors():
    with pytest.raises(ValueError, match="XeCache: max_cache_len must be positive, got 0"):
        XeCache(CONFIG, max_cache_len=0)
    for dtype in (torch.float16, "int8"):
        with pytest.raises(ValueError, match=f"XeCache: dtype must be None, .* or 'k8v4', got {dtype!r}"):
            XeCache(CONFIG, dtype=dtype)
    with pytest.raises(NotImplementedError, match="dtype must be None or of 8 bits with a model in float32"):
        XeCache(CONFIG, dtype="k8v4").update(*new_states(2, 5), 0)
    narrow = (torch.zeros(2, HEADS, 5, 96, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(NotImplementedError, match="a multiple of 32 columns and values of one of 64, got 96 and 96"):
        XeCache(CONFIG, dtype="k8v4").update(*narrow, 0)
    with pytest.raises(
        NotImplementedError, match="must be one of full_attention, .*, got compressed_sparse_attention. Use Dynamic"
    ):
        XeCache(transformers.LlamaConfig(num_hidden_layers=1, layer_types=["compressed_sparse_attention"]))
    cache = XeCache(CONFIG)
    cache.update(*new_states(2, 5), 0)
    cache.update(*new_states(2, 4), 1)
    with pytest.raises(RuntimeError, match="must hold equally many keys"):
        XeCache.reorder_cache(_with_one_window(5, 4), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="tokens_to_remove must not be positive, got 1"):
        cache.crop(1)
    for _ in range(3 * WINDOW):
        cache.update(*new_states(2, 1), 1)
    with pytest.raises(RuntimeError, match="keeps only the last"):
        cache.layers[1].crop(-2 * WINDOW)


def _with_one_window(*lengths):
    cache = XeCache(DECODERS["llama"])
    for layer, tokens in enumerate(lengths):
        cache.update(*new_states(2, tokens), layer)
    return cache
