"""Greedy and beam search with cached keys and values, many sentences at once.

The hypotheses of a sentence form a tree, and so does its cache: what a hypothesis adds at step t
goes to slot (t, hypothesis), and nothing is moved when hypotheses change places. A mask of
ancestors, which follows the hypotheses instead, says which slots each of them sees. The
hypotheses are the query positions of one attention, so the source's keys are not repeated.

The search is that of the common toolkit (fairseq): of the 2 `beam` best continuations, those that
end and are among the first `beam` are finished, the best `beam` others go on, and a sentence is
done when `beam` hypotheses are finished.

    score = sum of log-probabilities / length^{length_penalty} ,   length with the end mark
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sigprop.models.seq2seq import Memory, Seq2Seq

BLOCK = 64  # symbols that `best_continuations` represents by their best one
INITIAL_STEPS = 16  # room of a new cache; doubled when it is full
COMPACT_BELOW = 0.75  # share of unfinished sentences in a batch below which the others leave it


@dataclass(frozen=True)
class Search:
    """Settings of a search.

    Attributes:
        start, end: marks at the start and the end of a target sentence; may be one symbol.
        beam: hypotheses kept.
        length_penalty: power of the length in the score; 0 compares plain log-probabilities.
        max_ratio, max_extra: at most max_ratio * (source symbols) + max_extra symbols, the end
            marks of both included; the end is forced there.
        min_length: symbols before the end mark may come.

    Raises ValueError for a value out of range.
    """

    start: int
    end: int
    beam: int = 5
    length_penalty: float = 1.0
    max_ratio: float = 1.2
    max_extra: int = 10
    min_length: int = 1

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1, got {self.beam}")
        if not (self.max_ratio >= 0 and self.max_extra >= 0 and self.max_ratio + self.max_extra):
            raise ValueError(
                "max_ratio and max_extra must not be negative, nor both 0, got "
                f"{self.max_ratio} and {self.max_extra}"
            )
        if self.min_length < 0:
            raise ValueError(f"min_length must not be negative, got {self.min_length}")


class Hypothesis(NamedTuple):
    """tokens: without start and end mark. score: see the module."""

    tokens: tuple[int, ...]
    score: float


# What a model finds whose outputs are not numbers, so that a run that diverged can be scored.
NOTHING = Hypothesis((), -math.inf)


class TreeCache:
    """Keys and values of the hypotheses of B sentences, a `models.seq2seq.Cache`.

    Args:
        depth: decoder blocks.
        n_sentences: B.
        beam: hypotheses of each.
    """

    def __init__(self, depth: int, n_sentences: int, beam: int, device: torch.device) -> None:
        self.beam = beam
        self.step = -1
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * depth
        self._own = torch.eye(beam, dtype=torch.bool, device=device)
        size = INITIAL_STEPS * beam
        # (B, hypothesis, step * beam + slot): True on the path from the root to the hypothesis.
        self._ancestors = torch.zeros(n_sentences, beam, size, dtype=torch.bool, device=device)

    def advance(self, parents: Tensor) -> None:
        """Start a step: hypothesis i of each sentence goes on from parents[:, i], (B, beam)."""
        self.step += 1
        first, last = self.step * self.beam, (self.step + 1) * self.beam
        if last > self._ancestors.shape[-1]:
            self._ancestors = torch.cat([self._ancestors, torch.zeros_like(self._ancestors)], -1)
        if self.beam > 1:
            rows = parents[:, :, None].expand(-1, -1, first)
            self._ancestors[:, :, :first] = self._ancestors[:, :, :first].gather(1, rows)
        self._ancestors[:, :, first:last] = self._own

    @property
    def n_before(self) -> int:
        return self.step

    @property
    def visible(self) -> Tensor | None:
        if self.beam == 1:
            return None
        return self._ancestors[:, None, :, : (self.step + 1) * self.beam]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first, last = self.step * self.beam, (self.step + 1) * self.beam
        kept = self._kept[layer]
        if kept is None or last > kept[0].shape[2]:
            size = self._ancestors.shape[-1]
            grown = [y.new_zeros(*y.shape[:2], size, y.shape[3]) for y in (k, v)]
            if kept is not None:
                for new, old in zip(grown, kept, strict=True):
                    new[:, :, :first] = old[:, :, :first]
            kept = self._kept[layer] = (grown[0], grown[1])
        for all_, new in zip(kept, (k, v), strict=True):
            all_[:, :, first:last] = new
        return kept[0][:, :, :last], kept[1][:, :, :last]

    def select(self, rows: Tensor) -> None:
        """Keep the sentences `rows` (b,) int64, in that order."""
        self._ancestors = self._ancestors[rows]
        self._kept = [kept and (kept[0][rows], kept[1][rows]) for kept in self._kept]


@torch.inference_mode()
def beam_search(
    model: Seq2Seq, source: Tensor, search: Search, *, tau: float | None = None
) -> list[list[Hypothesis]]:
    """The finished hypotheses of each sentence, at most `beam`, the best first.

    A model whose outputs are NaN finds `NOTHING`: an empty sentence with score -inf.

    Args:
        source: (B, S) int64, padded on the right. What is found for a sentence depends neither on
            padding nor on the other sentences, but for rounding.
        tau: see `Seq2Seq.encode`.

    Raises:
        ValueError: a sentence without symbols or longer than the model allows, or marks that are no
            symbols of the model.
    """
    beam = search.beam
    with _evaluating(model):
        memory, limits = _start(model, source, search, tau)
        device = source.device
        found: list[list[Hypothesis]] = [[] for _ in limits]
        sentence = list(range(len(limits)))  # sentence of each row of the batch
        alive = torch.ones(len(limits), dtype=torch.bool, device=device)
        cache = TreeCache(model.config.decoder_depth, len(limits), beam, device)
        parents = torch.arange(beam, device=device).expand(len(limits), beam)
        tokens = torch.full((len(limits), beam, 1), search.start, device=device)
        # All hypotheses are the empty one at first: only one of them counts.
        scores = torch.full((len(limits), beam), -math.inf, device=device)
        scores = scores.to(model.readout.dtype)
        scores[:, 0] = 0.0
        n_found = torch.zeros(len(limits), dtype=torch.int64, device=device)

        for step in range(max(limits)):
            cache.advance(parents)
            logp = _log_probabilities(model, tokens[:, :, -1], memory, tau, cache)
            last = [limits[s] <= step + 1 for s in sentence]
            _forbid(logp, model.config.pad, search, step, last)
            top, origin, symbol = best_continuations(scores, logp, 2 * beam)  # (B, 2 beam)

            ends = symbol == search.end
            finished = ends[:, :beam] & top[:, :beam].isfinite() & alive[:, None]
            length = step + 1
            for row, rank in finished.nonzero().tolist():
                path = tokens[row, origin[row, rank], 1:].tolist()
                score = top[row, rank].item() / length**search.length_penalty
                if len(found[sentence[row]]) < beam:
                    found[sentence[row]].append(Hypothesis(tuple(path), score))
            n_found += finished.sum(1)

            scores, order = top.masked_fill(ends, -math.inf).topk(beam)  # (B, beam)
            parents, symbol = origin.gather(1, order), symbol.gather(1, order)
            before = tokens.gather(1, parents[:, :, None].expand_as(tokens))
            tokens = torch.cat([before, symbol[:, :, None]], -1)

            alive &= (n_found < beam) & scores[:, 0].isfinite()
            rows = alive.nonzero().squeeze(1)
            if len(rows) == 0:
                break
            if len(rows) < COMPACT_BELOW * len(alive):
                cache.select(rows)
                memory = memory.select(rows)
                sentence = [sentence[row] for row in rows.tolist()]
                alive, n_found, scores = alive[rows], n_found[rows], scores[rows]
                tokens, parents = tokens[rows], parents[rows]
    return [sorted(hypotheses, key=lambda h: -h.score) or [NOTHING] for hypotheses in found]


@torch.inference_mode()
def greedy_search(
    model: Seq2Seq, source: Tensor, search: Search, *, tau: float | None = None
) -> list[Hypothesis]:
    """The most probable symbol at every step; arguments and errors as in `beam_search`."""
    with _evaluating(model):
        memory, limits = _start(model, source, search, tau)
        device = source.device
        cache = TreeCache(model.config.decoder_depth, len(limits), 1, device)
        parents = torch.zeros(len(limits), 1, dtype=torch.int64, device=device)
        tokens = torch.full((len(limits), 1), search.start, device=device)
        score = torch.zeros(len(limits), dtype=model.readout.dtype, device=device)
        length = torch.zeros(len(limits), dtype=torch.int64, device=device)
        alive = torch.ones(len(limits), dtype=torch.bool, device=device)
        for step in range(max(limits)):
            cache.advance(parents)
            logp = _log_probabilities(model, tokens[:, -1:], memory, tau, cache)
            _forbid(logp, model.config.pad, search, step, [limit <= step + 1 for limit in limits])
            best, symbol = logp.max(-1)  # (B, 1)
            score += best.squeeze(1) * alive
            length += alive
            tokens = torch.cat([tokens, symbol], 1)
            alive &= symbol.squeeze(1) != search.end
            if not alive.any():
                break
    score = score / length.to(score.dtype) ** search.length_penalty
    paths = zip(tokens[:, 1:].tolist(), length.tolist(), score.tolist(), strict=True)
    return [
        NOTHING if math.isnan(s) else Hypothesis(tuple(path[: n - 1]), s) for path, n, s in paths
    ]


def translate(
    model: Seq2Seq,
    sentences: Sequence[Sequence[int]],
    search: Search,
    *,
    tokens_per_batch: int = 2000,
    tau: float | None = None,
) -> list[Hypothesis]:
    """The best hypothesis for each sentence, in the order given.

    Sentences of like length go together, as many as fill `tokens_per_batch` source symbols with
    padding. Sentences end with their end mark. A beam of 1 is greedy search.
    """
    best: list[Hypothesis] = [Hypothesis((), 0.0)] * len(sentences)
    device = model.readout.device
    for batch in _batches([len(sentence) for sentence in sentences], tokens_per_batch):
        width = len(sentences[batch[-1]])
        rows = [[*sentences[i], *[model.config.pad] * (width - len(sentences[i]))] for i in batch]
        source = torch.tensor(rows, dtype=torch.int64, device=device)
        if search.beam == 1:
            hypotheses = greedy_search(model, source, search, tau=tau)
        else:
            hypotheses = [found[0] for found in beam_search(model, source, search, tau=tau)]
        for i, hypothesis in zip(batch, hypotheses, strict=True):
            best[i] = hypothesis
    return best


def best_continuations(scores: Tensor, logp: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of scores[b, i] + logp[b, i, v] for each b, in descending order.

    The k best are in the k blocks of symbols with the best maxima, so only those are sorted.

    Args:
        scores: (B, beam).
        logp: (B, beam, V).
        k: at most beam V, else that many.

    Returns:
        Sums, hypotheses i and symbols v, each (B, k). Sums of -inf may come with any symbol.
    """
    n_symbols = logp.shape[-1]
    whole = n_symbols - n_symbols % BLOCK
    maxima = logp[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)  # (B, beam, blocks)
    if whole < n_symbols:
        maxima = torch.cat([maxima, logp[..., whole:].amax(-1, keepdim=True)], -1)
    n_blocks = maxima.shape[-1]
    maxima = (maxima + scores[:, :, None]).flatten(1)  # (B, beam * blocks)
    blocks = maxima.topk(min(k, maxima.shape[1]), sorted=False).indices
    i, first = blocks // n_blocks, blocks % n_blocks * BLOCK  # (B, blocks)
    v = first[:, :, None] + torch.arange(BLOCK, device=logp.device)  # (B, blocks, BLOCK)
    flat = i[:, :, None] * n_symbols + v.clamp(max=n_symbols - 1)
    sums = logp.flatten(1).gather(1, flat.flatten(1)).view(v.shape)
    sums = (sums + scores.gather(1, i)[:, :, None]).masked_fill(v >= n_symbols, -math.inf)
    top, order = sums.flatten(1).topk(min(k, logp[0].numel()))  # (B, k)
    flat = flat.flatten(1).gather(1, order)
    return top, flat // n_symbols, flat % n_symbols


def _start(
    model: Seq2Seq, source: Tensor, search: Search, tau: float | None
) -> tuple[Memory, list[int]]:
    """What the decoder reads, and the most symbols each sentence may get."""
    marks, n_symbols = {model.config.pad, search.start, search.end}, model.config.target_symbols
    if search.end == model.config.pad or max(marks) >= n_symbols or len(marks) == n_symbols:
        raise ValueError(
            f"start = {search.start} and end = {search.end} do not fit {n_symbols} target symbols "
            f"with padding {model.config.pad}: use the marks the model was trained with"
        )
    n_source = (source != model.config.pad).sum(1).tolist()
    if 0 in n_source:
        raise ValueError(f"source row {n_source.index(0)} holds padding only: drop the sentence")
    longest = model.config.max_tokens
    limits = [max(1, min(longest, int(search.max_ratio * n + search.max_extra))) for n in n_source]
    memory = model.remember(model.encode(source, tau=tau), source)
    # Read at every step, so laid out for it.
    kept = tuple((k.contiguous(), v.contiguous()) for k, v in memory.keys_values)
    return memory._replace(keys_values=kept), limits


def _log_probabilities(
    model: Seq2Seq, tokens: Tensor, memory: Memory, tau: float | None, cache: TreeCache
) -> Tensor:
    """log P of the next symbol, (B, beam) -> (B, beam, V)."""
    hidden = model.decode(tokens, memory, tau=tau, cache=cache)  # (B, beam, d)
    return (hidden @ model.readout.T).to(model.readout.dtype).log_softmax(-1)


def _forbid(logp: Tensor, pad: int, search: Search, step: int, last: Sequence[bool]) -> None:
    """Set to -inf, in place, what may not come next in (B, beam, V)."""
    logp[..., [symbol for symbol in (pad, search.start) if symbol != search.end]] = -math.inf
    if any(last):
        rows = torch.tensor(last, device=logp.device)
        end = logp[rows, :, search.end]
        logp[rows] = -math.inf
        logp[rows, :, search.end] = end
    if step < search.min_length:
        early = torch.tensor([not now for now in last], device=logp.device)
        logp[early, :, search.end] = -math.inf


def _batches(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices by batch, shortest first; each batch fills at most tokens_per_batch, or is one."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > tokens_per_batch:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@contextmanager
def _evaluating(model: Seq2Seq) -> Iterator[None]:
    """Without dropout; the mode is restored."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
