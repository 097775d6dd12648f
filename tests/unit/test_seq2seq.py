"""The translation model computes what PyTorch's transformer and `models.block` compute."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tiny_translation import METHODS
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.block import block, residual
from sigprop.models.label_smoothing import smoothed_cross_entropy
from sigprop.models.schemes import SCHEMES, Strength, SubLayer
from sigprop.models.seq2seq import (
    Seq2Seq,
    Seq2SeqConfig,
    dropout,
)
from sigprop.models.stack import LAYER_NORM_EPS
from sigprop.models.trained import sinusoids

CONFIG = Seq2SeqConfig(
    19, 23, 16, encoder_depth=2, decoder_depth=3, n_heads=4, d_ff=24, max_tokens=32
)
PAD = CONFIG.pad


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(name: str, config: Seq2SeqConfig = CONFIG, seed: int = 0) -> Seq2Seq:
    """In float64, with gains, biases and strengths away from their start."""
    model = Seq2Seq(config, SCHEMES[name], seeded(seed)).double()
    g = seeded(seed + 1)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if any(part in key for part in ("gain", "bias", "strengths")):
                p += 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return model


def draw_tokens(lengths: list[int], n_symbols: int, seed: int, width: int = 0) -> Tensor:
    width = max(width, *lengths)
    tokens = torch.randint(1, n_symbols, (len(lengths), width), generator=seeded(seed))
    return tokens.masked_fill(torch.arange(width) >= torch.tensor(lengths)[:, None], PAD)


SOURCE = draw_tokens([5, 8, 3], 19, 5)
TARGET = draw_tokens([7, 4, 9], 23, 6)


class Plain(nn.Module):
    """The same model written with nn.Transformer, in float64."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        c, self.pre = model.config, model.scheme.norm == "pre"
        self.source = nn.Embedding(c.source_symbols, c.d_model)
        self.target = nn.Embedding(c.target_symbols, c.d_model)
        self.net = nn.Transformer(
            c.d_model,
            c.n_heads,
            c.encoder_depth,
            c.decoder_depth,
            c.d_ff,
            dropout=0.0,
            layer_norm_eps=LAYER_NORM_EPS,
            batch_first=True,
            norm_first=self.pre,
        )
        if not self.pre:  # nn.Transformer always ends in LN, the POST-LN model has it already
            self.net.encoder.norm, self.net.decoder.norm = None, None
        self.double()
        with torch.no_grad():
            for p in self.parameters():
                p.zero_()
        for mine, theirs in self.pairs(model):
            theirs.data.copy_(mine)

    def pairs(self, model: Seq2Seq, gradients: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Every weight of the model (or its gradient) alongside PyTorch's."""

        def mine(p: Tensor, index: int | None = None) -> Tensor:
            value = p.grad if gradients else p.detach()
            return value if index is None else value[0, index]

        found = [
            (mine(model.source_embedding), self.source.weight),
            (mine(model.target_embedding), self.target.weight),
        ]
        stacks = ((model.encoder, self.net.encoder), (model.decoder, self.net.decoder))
        for stack, theirs in stacks:
            decodes = stack is model.decoder
            for i, layer in enumerate(theirs.layers):
                w = {family: mine(value, i).T for family, value in stack.weights.items()}
                found += [(w["ff1"], layer.linear1.weight), (w["ff2"], layer.linear2.weight)]
                attentions = [("", layer.self_attn)]
                attentions += [("cross_", layer.multihead_attn)] if decodes else []
                for prefix, attention in attentions:
                    qkv = torch.cat([w[prefix + family] for family in "qkv"])
                    found.append((qkv, attention.in_proj_weight))
                    found.append((w[prefix + "o"], attention.out_proj.weight))
                norms = {"attention": layer.norm1, "feed_forward": layer.norm2}
                if decodes:
                    norms = {"cross_attention": layer.norm2, "feed_forward": layer.norm3}
                    norms["attention"] = layer.norm1
                for branch, norm in norms.items():
                    found.append((mine(stack.gains[branch], i), norm.weight))
                    found.append((mine(stack.biases[branch], i), norm.bias))
            if self.pre:
                found.append((mine(stack.final_gain)[0], theirs.norm.weight))
                found.append((mine(stack.final_bias)[0], theirs.norm.bias))
        return found

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        d = self.source.embedding_dim

        def embed(tokens: Tensor, embedding: nn.Embedding) -> Tensor:
            return math.sqrt(d) * embedding(tokens) + sinusoids(tokens.shape[1], d).double()

        n = target.shape[1]
        y = self.net(
            embed(source, self.source),
            embed(target, self.target),
            tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),
            src_key_padding_mask=source == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return y @ self.target.weight.T


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", ["post_ln_xavier", "pre_ln_xavier"])
def test_same_function_and_gradients_as_pytorch(name: str) -> None:
    model = build(name)
    plain = Plain(model)
    real = TARGET != PAD
    ours, theirs = model(SOURCE, TARGET), plain(SOURCE, TARGET)
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-9, atol=1e-9)

    loss = model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], label_smoothing=0.1)
    logits = plain(SOURCE, TARGET[:, :-1])
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    expected = criterion(logits.flatten(0, 1), TARGET[:, 1:].flatten())
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    loss.backward()
    expected.backward()
    compared = 0
    for mine, p in plain.pairs(model, gradients=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-8, atol=1e-11)
        compared += mine.numel()
    assert compared == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_the_encoder_is_the_block(name: str) -> None:
    """Layer by layer, `models.block.block` with this stack's weights gives the same states."""
    model = build(name)
    encoder, source = model.encoder, SOURCE[1:2]  # no padding
    states: list[Tensor] = []
    model.encode(source, tau=1.7, states=states)
    assert len(states) == CONFIG.encoder_depth + 1
    scheme = replace(model.scheme, tau=1.7)
    for layer in range(CONFIG.encoder_depth):

        def project(z: Tensor, widths: dict[str, int], layer: int = layer) -> tuple[Tensor, ...]:
            return tuple(z @ encoder.weights[family][0, layer] for family in widths)

        def norm(z: Tensor, branch: str, layer: int = layer) -> Tensor:
            y = functional.layer_norm(z, z.shape[-1:], eps=LAYER_NORM_EPS)
            return encoder.gains[branch][0, layer] * y + encoder.biases[branch][0, layer]

        strengths = {b: a[0, layer] for b, a in (encoder.strengths or {}).items()}
        out = block(
            states[layer],
            project,
            scheme,
            CONFIG.encoder_depth,
            n_heads=CONFIG.n_heads,
            d_ff=CONFIG.d_ff,
            norm=norm,
            strengths=strengths or None,
        )
        torch.testing.assert_close(out.x, states[layer + 1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
def test_tau_multiplies_the_queries_of_the_heated_attentions(site: str) -> None:
    model = build("post_ln_xavier", replace(CONFIG, heated=(site,)))
    hot = model(SOURCE, TARGET, tau=3.0)
    cold = model(SOURCE, TARGET)
    assert (hot - cold).abs().max() > 1e-3
    stack, family = {
        "encoder": (model.encoder, "q"),
        "decoder": (model.decoder, "q"),
        "cross": (model.decoder, "cross_q"),
    }[site]
    with torch.no_grad():
        stack.weights[family] *= 3.0
    torch.testing.assert_close(model(SOURCE, TARGET), hot, rtol=1e-9, atol=1e-9)


def test_tau_zero_is_uniform_attention() -> None:
    model = build("residual_scaling")
    found = model(SOURCE, TARGET, tau=0.0)
    with torch.no_grad():
        for stack in (model.encoder, model.decoder):
            for family in ("q", "cross_q"):
                if family in stack.weights:
                    stack.weights[family].zero_()
    torch.testing.assert_close(found, model(SOURCE, TARGET), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_no_output_sees_later_symbols(name: str) -> None:
    model = build(name)
    before = model(SOURCE, TARGET)
    for t in (1, 4, 8):
        changed = TARGET.clone()
        changed[:, t:] = 1 + (changed[:, t:] + 3) % 22
        after = model(SOURCE, changed)
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=1e-12, atol=1e-12)
        assert (after[:, t] - before[:, t]).abs().max() > 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_padding_and_company_change_nothing(name: str) -> None:
    model = build(name)
    together = model(SOURCE, TARGET)
    wide = model(
        functional.pad(SOURCE, (0, 4), value=PAD), functional.pad(TARGET, (0, 3), value=PAD)
    )
    torch.testing.assert_close(wide[:, :9], together, rtol=1e-10, atol=1e-10)
    total = model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], label_smoothing=0.2, reduction="sum")
    alone = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        n, m = int((SOURCE[i] != PAD).sum()), int((TARGET[i] != PAD).sum())
        source, target = SOURCE[i : i + 1, :n], TARGET[i : i + 1, :m]
        torch.testing.assert_close(
            model(source, target)[0], together[i, :m], rtol=1e-10, atol=1e-10
        )
        alone = alone + model.loss(
            source, target[:, :-1], target[:, 1:], label_smoothing=0.2, reduction="sum"
        )
    torch.testing.assert_close(total, alone, rtol=1e-11, atol=0)


def test_loss_is_a_mean_over_real_symbols() -> None:
    model = build("pre_ln_xavier")
    n_real = int((TARGET[:, 1:] != PAD).sum())
    total = model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], reduction="sum")
    torch.testing.assert_close(
        model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:]), total / n_real, rtol=1e-12, atol=0
    )
    with pytest.raises(ValueError, match="reduction 'meen' is unknown: did you mean 'mean'"):
        model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], reduction="meen")


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
def test_label_smoothing_is_pytorchs(eps: float) -> None:
    h = torch.randn(11, 6, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    w = torch.randn(17, 6, generator=seeded(2), dtype=torch.float64, requires_grad=True)
    y = torch.randint(17, (11,), generator=seeded(3))
    weights = torch.rand(11, generator=seeded(4), dtype=torch.float64)
    found = smoothed_cross_entropy(h, w, y, eps)
    expected = functional.cross_entropy(h @ w.T, y, label_smoothing=eps, reduction="none")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(found @ weights, (h, w))
    for mine, theirs in zip(
        gradients, torch.autograd.grad(expected @ weights, (h, w)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_label_smoothing_survives_large_logits_and_half_precision() -> None:
    h = 100 * torch.randn(5, 8, generator=seeded(1))
    w = 100 * torch.randn(9, 8, generator=seeded(2))
    y = torch.arange(5)
    expected = functional.cross_entropy(h @ w.T, y, label_smoothing=0.1, reduction="none")
    found = smoothed_cross_entropy(h, w, y, 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.1)
    h, w = (h / 100).requires_grad_(), (w / 100).requires_grad_()
    exact = functional.cross_entropy(h @ w.T, y, label_smoothing=0.1)
    wanted = torch.autograd.grad(exact, (h, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = smoothed_cross_entropy(h, w, y, 0.1).mean()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.03, atol=0.03)
    for mine, theirs in zip(torch.autograd.grad(loss, (h, w)), wanted, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.02)
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\), got 1"):
        smoothed_cross_entropy(h, w, y, 1.0)


@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_training_step_is_close(name: str) -> None:
    model = Seq2Seq(CONFIG, SCHEMES[name], seeded(0))
    exact = model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], label_smoothing=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(SOURCE, TARGET[:, :-1], TARGET[:, 1:], label_smoothing=0.1)
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_residual_is_the_written_formula() -> None:
    g = seeded(0)
    x, y = (torch.randn(2, 3, 4, generator=g, dtype=torch.float64) for _ in range(2))
    alpha = torch.tensor(0.6, dtype=torch.float64)
    one = Strength(0.6)

    def norm(z: Tensor) -> Tensor:
        return z.tanh()

    for strength in (0.6, alpha):
        plain = SubLayer("attention", one, False, False)
        torch.testing.assert_close(
            residual(x, lambda z: z * y, plain, strength, norm), x + 0.6 * x * y
        )
        post = SubLayer("attention", one, False, True)
        expected = (x + 0.6 * x * y).tanh()
        torch.testing.assert_close(residual(x, lambda z: z * y, post, strength, norm), expected)
        pre = SubLayer("attention", one, True, False, "variance_preserving")
        expected = 0.8 * x + 0.6 * x.tanh() * y
        torch.testing.assert_close(residual(x, lambda z: z * y, pre, strength, norm), expected)


def test_cross_attention_has_the_record_of_self_attention() -> None:
    scheme = SCHEMES["residual_scaling"]
    a, c, f = scheme.decoder_sublayers
    assert c.branch == "cross_attention" and replace(c, branch="attention") == a
    assert (a, f) == scheme.sublayers


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.999])
def test_dropout(rate: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(401, 499)
    y = dropout(x, rate)
    kept = y != 0
    n = x.numel()
    share = kept.double().mean().item()
    assert share == pytest.approx(1 - rate, abs=5 * math.sqrt(rate * (1 - rate) / n))
    assert y.max().item() == pytest.approx(1 / (1 - rate), rel=2**-16 / (1 - rate))
    # Neighbours, which share a draw, are independent.
    both = (kept[:, 1:] & kept[:, :-1]).double().mean().item()
    assert both == pytest.approx(share**2, abs=6 * math.sqrt(share**2 / n) + 1e-6)
    assert dropout(x, 0.0) is x
    assert not torch.equal(dropout(x, rate), y)


def test_dropout_reaches_every_branch_in_training_only() -> None:
    model = build("pre_ln_xavier", replace(CONFIG, dropout=0.4, attention_dropout=0.3))
    model.eval()
    assert torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
    quiet = build("pre_ln_xavier")
    assert torch.equal(quiet(SOURCE, TARGET), model(SOURCE, TARGET))
    model.train()
    assert not torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
    states: list[Tensor] = []
    model.encode(SOURCE, states=states)
    for before, after in itertools.pairwise(states):
        # A kept entry of both branches differs from the skip; 0.4^2 of the entries keep it.
        same = (before == after)[SOURCE != PAD].double().mean().item()
        assert 0.08 < same < 0.25


@pytest.mark.parametrize(
    ("share", "names"),
    [
        ("none", {"source_embedding", "target_embedding", "readout"}),
        ("decoder", {"source_embedding", "target_embedding"}),
        ("all", {"target_embedding"}),
    ],
)
def test_shared_embeddings(share: str, names: set[str]) -> None:
    model = build("post_ln_xavier", replace(CONFIG, source_symbols=23, share=share))
    found = {name for name, _ in model.named_parameters() if "." not in name}
    assert found == names
    copy = build("post_ln_xavier", replace(CONFIG, source_symbols=23, share=share), seed=9)
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(SOURCE, TARGET), model(SOURCE, TARGET))


def test_one_head_has_no_output_product() -> None:
    model = build("post_ln_xavier", replace(CONFIG, n_heads=1))
    assert set(model.encoder.weights) == {"q", "k", "v", "ff1", "ff2"}
    assert set(model.decoder.weights) == {
        *("q", "k", "v", "cross_q", "cross_k", "cross_v", "ff1", "ff2")
    }
    assert model(SOURCE, TARGET).shape == (3, 9, 23)


def test_a_seed_gives_one_model() -> None:
    first, again = (Seq2Seq(CONFIG, SCHEMES["t_fixup"], seeded(4)) for _ in range(2))
    other = Seq2Seq(CONFIG, SCHEMES["t_fixup"], seeded(5))
    for (name, p), q, r in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(p, q), name
        assert not torch.equal(p, r), name


def test_it_learns_to_copy() -> None:
    """A few Adam steps on one batch: every method's loss falls well below that of chance."""
    source = draw_tokens([6] * 8, 19, 1)
    target = torch.cat([torch.full((8, 1), 20), source], 1)
    for name in METHODS:
        model = Seq2Seq(CONFIG, SCHEMES[name], seeded(0))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            loss = model.loss(source, target[:, :-1], target[:, 1:])
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.5 * math.log(18), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
        ({"n_heads": 3}, "d_model = 16 must be even and a multiple of n_heads = 3"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"share": "all"}, "share 'all' needs one vocabulary, got 19 and 23 symbols"),
        ({"share": "decoders"}, "share 'decoders' is unknown: did you mean 'decoder'"),
        ({"heated": ("encoders",)}, "heated 'encoders' is unknown: did you mean 'encoder'"),
        ({"pad": 19}, "pad must be a symbol of both vocabularies, got 19"),
    ],
)
def test_bad_shapes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_a_sentence_that_is_too_long() -> None:
    model = build("post_ln_xavier", replace(CONFIG, max_tokens=8))
    with pytest.raises(ValueError, match="sentence of 9 symbols is longer than max_tokens = 8"):
        model(SOURCE, TARGET)
