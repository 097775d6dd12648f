"""Speed of the translation model alongside the same model written with torch.nn.Transformer.

    python benchmarks/translation.py                training and beam search
    python benchmarks/translation.py --parts        where a training step spends its time

Both have the same weights, and before any timing both must give the same loss, the same gradients
and the same translations. The ordinary way is nn.Transformer with nn.Embedding, nn.Dropout,
nn.Linear and nn.CrossEntropyLoss; its beam search is batched, encodes once, and reads out the last
position only, but runs the decoder over the whole prefix at every step.

One thread, float32. Batches fill 2,000 target tokens with sentences of like length. Dropout is 0.1
on embeddings and branches in both. A training step is forward, backward and Adam. Translations of
an untrained model rarely end on their own, so they run to the length limit, which is near the
source's length. Tokens are real ones, without padding. Repeats are interleaved, times are
processor time, ratios are medians over repeats.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from sigprop.models.decoding import Hypothesis, Search, beam_search
from sigprop.models.schemes import SCHEMES
from sigprop.models.seq2seq import Seq2Seq, Seq2SeqConfig

PAD, START, END, WORDS = 0, 1, 2, 3
SEARCH = Search(start=START, end=END, beam=5, max_ratio=1.0, max_extra=2)
SMOOTHING = 0.1
TARGETS = {"training": 1.2, "beam search": 5.0}


class Ordinary(nn.Module):
    """The same model, with the same weights, from PyTorch's parts."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        c = model.config
        pre = model.scheme.norm == "pre"
        self.scale = math.sqrt(c.d_model)
        self.source_embedding = nn.Embedding(c.source_symbols, c.d_model)
        self.target_embedding = nn.Embedding(c.target_symbols, c.d_model)
        self.transformer = nn.Transformer(
            c.d_model,
            c.n_heads,
            c.encoder_depth,
            c.decoder_depth,
            c.d_ff,
            c.dropout,
            batch_first=True,
            norm_first=pre,
            bias=False,
        )
        self.readout = nn.Linear(c.d_model, c.target_symbols, bias=False)
        self.readout.weight = self.target_embedding.weight
        self.dropout = nn.Dropout(c.dropout)
        self.register_buffer("positions", model.positions)
        encoder, decoder = self.transformer.encoder, self.transformer.decoder
        if not pre:  # nn.Transformer adds a last LN to both
            encoder.norm, decoder.norm = None, None
        for layer in (*encoder.layers, *decoder.layers):  # dropout where the model has it
            layer.dropout = nn.Identity()
            for name in ("self_attn", "multihead_attn"):
                if hasattr(layer, name):
                    getattr(layer, name).dropout = 0.0
        with torch.no_grad():
            self.source_embedding.weight.copy_(model.source_embedding)
            self.target_embedding.weight.copy_(model.target_embedding)
            for stack, layers in ((model.encoder, encoder.layers), (model.decoder, decoder.layers)):
                for index, layer in enumerate(layers):
                    w = {family: value[0, index].T for family, value in stack.weights.items()}
                    layer.linear1.weight.copy_(w["ff1"])
                    layer.linear2.weight.copy_(w["ff2"])
                    attentions = [("", layer.self_attn)]
                    if "cross_q" in w:
                        attentions.append(("cross_", layer.multihead_attn))
                    for prefix, attention in attentions:
                        qkv = torch.cat([w[prefix + family] for family in "qkv"])
                        attention.in_proj_weight.copy_(qkv)
                        attention.out_proj.weight.copy_(w[prefix + "o"])

    def embed(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        x = embedding(tokens) * self.scale + self.positions[: tokens.shape[1]]
        return self.dropout(x)

    def encode(self, source: Tensor) -> Tensor:
        x = self.embed(source, self.source_embedding)
        return self.transformer.encoder(x, src_key_padding_mask=source == PAD)

    def decode(self, target: Tensor, memory: Tensor, source_pad: Tensor) -> Tensor:
        n = target.shape[1]
        return self.transformer.decoder(
            self.embed(target, self.target_embedding),
            memory,
            tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),
            tgt_is_causal=True,
            memory_key_padding_mask=source_pad,
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.readout(self.decode(target, self.encode(source), source == PAD))


@torch.inference_mode()
def ordinary_beam_search(model: Ordinary, source: Tensor, search: Search) -> list[Hypothesis]:
    """Beam search without a cache: the best hypothesis of each sentence."""
    model.eval()
    n, beam = len(source), search.beam
    n_symbols = model.readout.out_features
    memory = model.encode(source).repeat_interleave(beam, 0)
    source_pad = (source == PAD).repeat_interleave(beam, 0)
    n_source = (source != PAD).sum(1)
    limits = (search.max_ratio * n_source + search.max_extra).long()
    tokens = torch.full((n * beam, 1), START)
    scores = torch.full((n, beam), -math.inf)
    scores[:, 0] = 0
    found: list[list[Hypothesis]] = [[] for _ in range(n)]
    done = [False] * n
    for step in range(int(limits.max())):
        hidden = model.decode(tokens, memory, source_pad)[:, -1]
        logp = model.readout(hidden).log_softmax(-1).view(n, beam, n_symbols)
        logp[..., [PAD, START]] = -math.inf
        if step < search.min_length:
            logp[..., END] = -math.inf
        last = limits == step + 1
        ending = logp[last][..., END]
        logp[last] = -math.inf
        logp[last, :, END] = ending
        top, index = (scores[:, :, None] + logp).flatten(1).topk(2 * beam)
        origin, symbol = index // n_symbols, index % n_symbols
        ends = symbol == END
        for row, rank in (ends[:, :beam] & top[:, :beam].isfinite()).nonzero().tolist():
            if not done[row] and len(found[row]) < beam:
                path = tokens.view(n, beam, -1)[row, origin[row, rank], 1:].tolist()
                score = top[row, rank].item() / (step + 1) ** search.length_penalty
                found[row].append(Hypothesis(tuple(path), score))
        done = [len(f) >= beam or bool(l) or d for f, l, d in zip(found, last, done, strict=True)]
        if all(done):
            break
        scores, order = top.masked_fill(ends, -math.inf).topk(beam)
        parents, symbol = origin.gather(1, order), symbol.gather(1, order)
        rows = (beam * torch.arange(n)[:, None] + parents).flatten()
        tokens = torch.cat([tokens[rows], symbol.view(-1, 1)], 1)
    return [max(hypotheses, key=lambda h: h.score) for hypotheses in found]


def draw_batch(config: Seq2SeqConfig, n_tokens: int, length: int, seed: int) -> tuple[Tensor, ...]:
    """Source and target (with both marks) of like length, about n_tokens target tokens."""
    g = torch.Generator().manual_seed(seed)
    n = max(1, n_tokens // (length + 1))
    pairs = []
    for extra in (0, 1):  # the source has no start mark
        lengths = length - torch.randint(0, max(1, length // 6), (n,), generator=g)
        tokens = torch.randint(WORDS, config.target_symbols, (n, length + 1 + extra), generator=g)
        places = torch.arange(length + 1 + extra)
        ends = lengths[:, None] + extra
        tokens = tokens.masked_fill(places == ends, END).masked_fill(places > ends, PAD)
        if extra:
            tokens[:, 0] = START
        pairs.append(tokens)
    return tuple(pairs)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(ways: list[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Seconds of each way, one entry per repeat, after one warm-up."""
    runs = [[seconds(way) for way in ways] for _ in range(repeats + 1)][1:]
    return [list(times) for times in zip(*runs, strict=True)]


def report(what: str, n_tokens: int, package: list[float], ordinary: list[float]) -> None:
    ratios = [b / a for a, b in zip(package, ordinary, strict=True)]
    rates = [n_tokens / statistics.median(times) for times in (package, ordinary)]
    print(
        f"{what:12s} {rates[0]:9,.0f} {rates[1]:9,.0f}   {statistics.median(ratios):5.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})   {TARGETS[what]:.1f}",
        flush=True,
    )


def training_steps(
    model: Seq2Seq, ordinary: Ordinary, source: Tensor, target: Tensor
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """One forward and backward pass of each, returning the loss."""
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=SMOOTHING)

    def package() -> Tensor:
        model.zero_grad()
        loss = model.loss(source, target[:, :-1], target[:, 1:], label_smoothing=SMOOTHING)
        loss.backward()
        return loss

    def plain() -> Tensor:
        ordinary.zero_grad()
        logits = ordinary(source, target[:, :-1])
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        return loss

    return package, plain


def check_same(
    model: Seq2Seq, ordinary: Ordinary, source: Tensor, target: Tensor
) -> list[list[Hypothesis]]:
    """Stop unless loss, gradients and translations agree; returns the translations."""
    model.eval(), ordinary.eval()
    losses = [step() for step in training_steps(model, ordinary, source, target)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    gradients = (model.target_embedding.grad, ordinary.target_embedding.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    ours = beam_search(model, source, SEARCH)
    theirs = ordinary_beam_search(ordinary, source, SEARCH)
    same = sum(a[0].tokens == b.tokens for a, b in zip(ours, theirs, strict=True))
    print(f"same loss and gradients; {same} of {len(theirs)} translations the same")
    if same < 0.95 * len(theirs):  # rounding decides between near ties
        raise SystemExit("the two beam searches differ")
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of translation on one thread.")
    parser.add_argument("--scheme", choices=list(SCHEMES), default="post_ln_xavier")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2, help="blocks of each stack")
    parser.add_argument("--n-heads", type=int, default=4)
    parser.add_argument("--d-ff", type=int, default=256)
    parser.add_argument("--symbols", type=int, default=4000)
    parser.add_argument("--n-tokens", type=int, default=2000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 25, 50])
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", action="store_true", help="profile a training step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if SCHEMES[options.scheme].norm == "none":
        raise SystemExit(f"nn.Transformer has no {options.scheme}: choose another --scheme")
    config = Seq2SeqConfig(
        options.symbols,
        options.symbols,
        options.d_model,
        options.depth,
        options.depth,
        n_heads=options.n_heads,
        d_ff=options.d_ff,
        dropout=options.dropout,
    )
    print(
        f"{options.scheme}, {options.depth}+{options.depth} layers, d {options.d_model}, "
        f"{options.n_heads} heads, d_ff {options.d_ff}, {options.symbols} symbols, dropout "
        f"{options.dropout}, {options.repeats} interleaved repeats, tokens per second"
    )
    for length in options.lengths:
        generator = torch.Generator().manual_seed(0)
        model = Seq2Seq(config, SCHEMES[options.scheme], generator)
        ordinary = Ordinary(model)
        source, target = draw_batch(config, options.n_tokens, length, 1)
        n_tokens = int((target[:, 1:] != PAD).sum())
        print(f"\n{len(source)} sentences of up to {length} words: ", end="")
        found = check_same(model, ordinary, source, target)
        steps = training_steps(model.train(), ordinary.train(), source, target)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4) for m in (model, ordinary)]
        ways = [
            lambda step=step, optimizer=optimizer: (step(), optimizer.step())
            for step, optimizer in zip(steps, optimizers, strict=True)
        ]
        if options.parts:
            for way in ways:
                way()
                with profile(activities=[ProfilerActivity.CPU]) as profiler:
                    way()
                print(profiler.key_averages().table("self_cpu_time_total", row_limit=12))
            continue
        print("               package  ordinary   ratio (range)          target")
        report("training", n_tokens, *interleaved(ways, options.repeats))
        searches: list[Callable[[], object]] = [
            lambda: beam_search(model, source, SEARCH),  # noqa: B023
            lambda: ordinary_beam_search(ordinary, source, SEARCH),  # noqa: B023
        ]
        n_found = sum(len(hypotheses[0].tokens) + 1 for hypotheses in found)
        report("beam search", n_found, *interleaved(searches, max(2, options.repeats // 2)))


if __name__ == "__main__":
    main()
