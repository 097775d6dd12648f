"""Cached, batched searches find what a search without cache and batch finds."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_translation import METHODS
from torch import Tensor

from sigprop.models.decoding import (
    BLOCK,
    NOTHING,
    Hypothesis,
    Search,
    TreeCache,
    beam_search,
    best_continuations,
    greedy_search,
    translate,
)
from sigprop.models.schemes import SCHEMES
from sigprop.models.seq2seq import Seq2Seq, Seq2SeqConfig

PAD, START, END = 0, 1, 2
CONFIG = Seq2SeqConfig(
    11, 9, 8, encoder_depth=1, decoder_depth=2, n_heads=2, d_ff=12, max_tokens=40
)
SEARCH = Search(START, END, beam=3, max_ratio=1.0, max_extra=3)


def build(name: str = "post_ln_xavier", seed: int = 0, config: Seq2SeqConfig = CONFIG) -> Seq2Seq:
    """In float64, so that rounding decides between no two hypotheses; sharper than at the start."""
    generator = torch.Generator().manual_seed(seed)
    model = Seq2Seq(config, SCHEMES[name], generator).double()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "weights" in key:
                p *= 2.0
            if "strengths" in key:
                p += 0.5
    return model


def draw_source(lengths: list[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 11, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


def next_log_probabilities(
    model: Seq2Seq, source: Tensor, prefix: list[int], search: Search, tau: float | None
) -> list[float]:
    """Of one sentence, from the whole prefix, with what is forbidden at -inf."""
    with torch.no_grad():
        logits = model(source[None], torch.tensor([[search.start, *prefix]]), tau=tau)[0, -1]
    logp = logits.log_softmax(-1).tolist()
    limit = int(search.max_ratio * len(source) + search.max_extra)
    for v in range(len(logp)):
        last = len(prefix) + 1 >= max(1, limit)
        if (v in (PAD, search.start) or last) and v != END:
            logp[v] = -math.inf
        if v == END and not last and len(prefix) < search.min_length:
            logp[v] = -math.inf
    return logp


def reference_beam_search(
    model: Seq2Seq, source: Tensor, search: Search, tau: float | None = None
) -> list[Hypothesis]:
    """One sentence, no cache, lists."""
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[Hypothesis] = []
    while live and len(finished) < search.beam:
        candidates = []
        for prefix, score in live:
            logp = next_log_probabilities(model, source, prefix, search, tau)
            candidates += [([*prefix, v], score + x) for v, x in enumerate(logp) if x > -math.inf]
        candidates.sort(key=lambda c: -c[1])
        candidates = candidates[: 2 * search.beam]
        for path, score in candidates[: search.beam]:
            if path[-1] == END and len(finished) < search.beam:
                normalized = score / len(path) ** search.length_penalty
                finished.append(Hypothesis(tuple(path[:-1]), normalized))
        live = [c for c in candidates if c[0][-1] != END][: search.beam]
    return sorted(finished, key=lambda h: -h.score)


def reference_greedy(model: Seq2Seq, source: Tensor, search: Search) -> Hypothesis:
    prefix: list[int] = []
    total = 0.0
    while True:
        logp = next_log_probabilities(model, source, prefix, search, None)
        best = max(range(len(logp)), key=logp.__getitem__)
        total += logp[best]
        if best == END:
            score = total / (len(prefix) + 1) ** search.length_penalty
            return Hypothesis(tuple(prefix), score)
        prefix.append(best)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-9)


searches = st.builds(
    Search,
    start=st.sampled_from([START, END]),
    end=st.just(END),
    beam=st.integers(1, 6),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    max_ratio=st.sampled_from([0.0, 0.7, 1.5]),
    max_extra=st.integers(1, 6),
    min_length=st.integers(0, 3),
)
batches = st.lists(st.integers(1, 7), min_size=1, max_size=5)
names = st.sampled_from(METHODS)
seeds = st.integers(0, 10**6)


@given(name=names, seed=seeds, lengths=batches, search=searches, tau=st.sampled_from([None, 4.0]))
@settings(max_examples=25)
def test_beam_search_is_the_unbatched_search_without_cache(
    name: str, seed: int, lengths: list[int], search: Search, tau: float | None
) -> None:
    model = build(name, seed)
    source = draw_source(lengths, seed)
    found = beam_search(model, source, search, tau=tau)
    for row, n, hypotheses in zip(source, lengths, found, strict=True):
        assert_same(hypotheses, reference_beam_search(model, row[:n], search, tau))


@given(name=names, seed=seeds, lengths=batches, search=searches)
@settings(max_examples=25)
def test_greedy_search_is_the_unbatched_one_and_a_beam_of_one(
    name: str, seed: int, lengths: list[int], search: Search
) -> None:
    model = build(name, seed)
    source = draw_source(lengths, seed)
    found = greedy_search(model, source, search)
    expected = [
        reference_greedy(model, row[:n], search) for row, n in zip(source, lengths, strict=True)
    ]
    assert_same(found, expected)
    single = beam_search(model, source, replace(search, beam=1))
    assert_same([hypotheses[0] for hypotheses in single], found)


@given(seed=seeds, beam=st.integers(1, 4), steps=st.integers(1, 20), data=st.data())
@settings(max_examples=10)
def test_the_cache_gives_what_a_pass_over_the_whole_path_gives(
    seed: int, beam: int, steps: int, data: st.DataObject
) -> None:
    """Hypotheses change places at random, and sentences leave halfway."""
    model = build("pre_ln_xavier", seed)
    generator = torch.Generator().manual_seed(seed)
    source = draw_source([4, 6, 2], seed)
    memory = model.remember(model.encode(source), source)
    cache = TreeCache(CONFIG.decoder_depth, 3, beam, torch.device("cpu"))
    paths = torch.empty(3, beam, 0, dtype=torch.int64)
    with torch.no_grad():
        for step in range(steps):
            parents = torch.randint(beam, (len(source), beam), generator=generator)
            new = torch.randint(9, (len(source), beam, 1), generator=generator)
            paths = paths.gather(1, parents[:, :, None].expand_as(paths))
            paths = torch.cat([paths, new], -1)
            cache.advance(parents)
            assert cache.n_before == step
            found = model.decode(new[:, :, 0], memory, cache=cache)
            if step % 4 == 0 or step == steps - 1:
                repeated = memory.select(torch.arange(len(source)).repeat_interleave(beam))
                expected = model.decode(paths.flatten(0, 1), repeated)[:, -1].view_as(found)
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
            if step == steps // 2 and len(source) == 3:
                rows = torch.tensor(data.draw(st.sampled_from([[0, 2], [1], [2, 0, 1]])))
                cache.select(rows)
                memory, source, paths = memory.select(rows), source[rows], paths[rows]


@given(
    seed=seeds,
    beam=st.integers(1, 5),
    n_symbols=st.sampled_from([3, 10, BLOCK, BLOCK + 1, 3 * BLOCK, 200]),
    k=st.integers(1, 12),
)
@settings(max_examples=40)
def test_best_continuations_are_those_of_a_full_sort(
    seed: int, beam: int, n_symbols: int, k: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logp = torch.randn(3, beam, n_symbols, generator=generator, dtype=torch.float64)
    logp[..., 0] = -math.inf
    scores = torch.randn(3, beam, generator=generator, dtype=torch.float64)
    scores[1, 1:] = -math.inf
    top, origin, symbol = best_continuations(scores, logp, k)
    full = (scores[:, :, None] + logp).flatten(1)
    k = min(k, beam * n_symbols)
    expected = full.sort(descending=True).values[:, :k]
    torch.testing.assert_close(top, expected, rtol=0, atol=0)
    assert (symbol < n_symbols).all()
    finite = top.isfinite()
    at = full.gather(1, origin * n_symbols + symbol)
    torch.testing.assert_close(top[finite], at[finite], rtol=0, atol=0)


def test_sentences_leave_when_they_are_done() -> None:
    """A model that ends at once needs beam steps at most, whatever the limit."""
    model = build("pre_ln_xavier")
    with torch.no_grad():
        model.target_embedding[END] = 0
        model.decoder.final_gain.zero_()
        model.decoder.final_bias.fill_(1.0)
        model.target_embedding[END] = 30.0  # the end mark is all but certain
    steps: list[int] = []
    decode = model.decode

    def counted(tokens: Tensor, *args: object, **options: object) -> Tensor:
        steps.append(len(tokens))
        return decode(tokens, *args, **options)

    model.decode = counted  # type: ignore[method-assign]
    search = replace(SEARCH, max_extra=30, min_length=0)
    found = greedy_search(model, draw_source([5, 2], 0), search)
    assert [h.tokens for h in found] == [(), ()]
    assert steps == [2]
    steps.clear()
    beam_search(model, draw_source([5, 2], 0), replace(search, beam=2))
    assert len(steps) <= 3


def test_finished_sentences_are_taken_out_of_the_batch() -> None:
    model = build("post_ln_xavier", 1)
    rows: list[int] = []
    decode = model.decode

    def counted(tokens: Tensor, *args: object, **options: object) -> Tensor:
        rows.append(len(tokens))
        return decode(tokens, *args, **options)

    model.decode = counted  # type: ignore[method-assign]
    search = Search(START, END, beam=2, max_ratio=3.0, max_extra=0, min_length=20)
    beam_search(model, draw_source([1, 1, 10], 0), search)
    assert rows[:4] == [3, 3, 3, 1]  # the short ones end at their limit, 3
    assert len(rows) > 20


@pytest.mark.parametrize("min_length", [0, 2, 4])
def test_lengths_stay_within_the_limits(min_length: int) -> None:
    source = draw_source([1, 2, 5, 6], 3)
    search = replace(SEARCH, max_ratio=0.5, max_extra=4, min_length=min_length)
    for seed in range(4):
        for row, hypotheses in enumerate(beam_search(build("pre_ln_xavier", seed), source, search)):
            limit = int(0.5 * (1, 2, 5, 6)[row] + 4)
            assert hypotheses
            for h in hypotheses:
                assert min(min_length, limit - 1) <= len(h.tokens) <= limit - 1
                assert not {PAD, START, END} & set(h.tokens)


def test_length_penalty_divides_by_a_power_of_the_length() -> None:
    """With a beam that holds every sentence, all are found, and the score ranks them."""
    model = build("post_ln_xavier", 5)
    source = draw_source([2], 0)
    search = Search(START, END, beam=60, max_ratio=0.0, max_extra=3, min_length=0)
    for power in (0.0, 1.0, 3.0):
        (found,) = beam_search(model, source, replace(search, length_penalty=power))
        assert len(found) == 1 + 6 + 36
        by_hand = {}
        for h in found:
            path = torch.tensor([[START, *h.tokens, END]])
            with torch.no_grad():
                logp = model(source, path[:, :-1]).log_softmax(-1)
            total = logp.gather(-1, path[:, 1:, None]).sum().item()
            by_hand[h.tokens] = total / (len(h.tokens) + 1) ** power
        assert [h.score for h in found] == pytest.approx(sorted(by_hand.values(), reverse=True))
        assert [h.score for h in found] == pytest.approx([by_hand[h.tokens] for h in found])


@pytest.mark.parametrize("beam", [1, 3])
def test_translate_keeps_the_order(beam: int) -> None:
    model = build("post_ln_xavier", 2)
    lengths = [5, 1, 7, 3, 7, 2, 5, 6]
    sentences = [row[:n].tolist() for row, n in zip(draw_source(lengths, 4), lengths, strict=True)]
    search = replace(SEARCH, beam=beam)
    alone = [beam_search(model, torch.tensor([s]), search)[0][0] for s in sentences]
    for tokens_per_batch in (1, 14, 1000):
        assert_same(translate(model, sentences, search, tokens_per_batch=tokens_per_batch), alone)
    assert translate(model, [], search) == []


def test_a_model_that_diverged_finds_nothing() -> None:
    model = build()
    with torch.no_grad():
        model.encoder.weights["ff1"].fill_(math.nan)
    source = draw_source([3, 5], 0)
    assert beam_search(model, source, SEARCH) == [[NOTHING], [NOTHING]]
    assert greedy_search(model, source, SEARCH) == [NOTHING, NOTHING]
    assert translate(model, [[3, 4], [5]], SEARCH) == [NOTHING, NOTHING]


def test_searches_switch_dropout_off_and_the_mode_back() -> None:
    model = build("post_ln_xavier", config=replace(CONFIG, dropout=0.5))
    source = draw_source([4, 5], 0)
    model.train()
    first = beam_search(model, source, SEARCH)
    assert model.training
    assert first == beam_search(model, source, SEARCH)
    model.eval()
    greedy_search(model, source, SEARCH)
    assert not model.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 0}, "beam must be at least 1, got 0"),
        ({"max_ratio": -1.0}, "max_ratio and max_extra must not be negative"),
        ({"max_ratio": 0.0, "max_extra": 0}, "nor both 0, got 0.0 and 0"),
        ({"min_length": -1}, "min_length must not be negative, got -1"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SEARCH, **changes)


@pytest.mark.parametrize("search", [beam_search, greedy_search])
def test_bad_input(search: object) -> None:
    model = build()
    with pytest.raises(ValueError, match="source row 1 holds padding only"):
        search(model, torch.tensor([[3, 4], [PAD, PAD]]), SEARCH)
    with pytest.raises(ValueError, match="41 symbols is longer than max_tokens = 40"):
        search(model, torch.full((1, 41), 3), SEARCH)
    with pytest.raises(ValueError, match="end = 9 do not fit 9 target symbols"):
        search(model, torch.full((1, 4), 3), replace(SEARCH, end=9))
