"""Trained encoders are the block with these weights, members never mix, and torch.nn agrees."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.block import block
from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import SCHEMES, Scheme, Strength
from sigprop.models.stack import families, standardize
from sigprop.models.trained import TokenClassifier, TrainedEncoder, sinusoids


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def jitter(module: nn.Module, seed: int = 9) -> None:
    """Move trained parameters off their start, so that gains of 1 and biases of 0 matter."""
    (generator,) = seeded(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p))


@pytest.mark.parametrize("name", ["post_ln_scaled", "pre_ln", "no_ln_scaled"])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_forward_is_the_block_with_explicit_weights(name: str, n_heads: int) -> None:
    """Member by member and layer by layer, with trained gains, biases and tau."""
    config = EncoderConfig(5, 8, 3, n_heads=n_heads, d_ff=12)
    scheme = dataclasses.replace(SCHEMES[name], tau=2.0)
    encoder = TrainedEncoder(config, scheme, seeded(1, 2)).double()
    jitter(encoder)
    x = torch.randn(2, 3, 5, 8, generator=seeded(3)[0], dtype=torch.float64)
    states: list[Tensor] = []
    out = encoder(x, states=states)
    assert len(states) == 4
    for e in range(2):
        y = x[e]
        for l in range(3):
            layer = l

            def project(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
                return tuple(z @ encoder.weights[f][e, layer] for f in widths)  # noqa: B023

            def norm(z: Tensor, branch: str) -> Tensor:
                gain, bias = encoder.gains[branch][e, layer], encoder.biases[branch][e, layer]  # noqa: B023
                return functional.layer_norm(z, (8,), gain, bias)

            y = block(y, project, scheme, 3, n_heads=n_heads, d_ff=12, norm=norm).x
            torch.testing.assert_close(states[l + 1][e], y, rtol=1e-10, atol=1e-10)
        if name == "pre_ln":
            y = functional.layer_norm(y, (8,), encoder.final_gain[e], encoder.final_bias[e])
        torch.testing.assert_close(out[e], y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("init", ["fan_in", "xavier"])
def test_weights_start_with_the_scheme_variances(init: str) -> None:
    """Sample variance of N weights has relative standard error sqrt(2 / N)."""
    config = EncoderConfig(4, 16, 40, n_heads=2, d_ff=64)
    scheme = dataclasses.replace(SCHEMES["post_ln"], init=init)
    encoder = TrainedEncoder(config, scheme, seeded(1, 2, 3))
    assert (
        set(encoder.weights)
        == set(families(SCHEMES["post_ln"].sublayers, config.n_heads))
        == {"q", "k", "v", "o", "ff1", "ff2"}
    )
    for family, w in encoder.weights.items():
        fan_in, fan_out = w.shape[-2:]
        expected = 2 / (fan_in + fan_out) if init == "xavier" else 1 / fan_in
        if init == "fan_in" and family == "ff2":
            expected *= 2
        error = math.sqrt(2 / w.numel())
        assert float(w.detach().double().var()) / expected == pytest.approx(1, abs=4 * error)
        assert abs(float(w.detach().double().mean())) < 4 * math.sqrt(expected / w.numel())
    for gain, bias in zip(encoder.gains.values(), encoder.biases.values(), strict=True):
        assert bool((gain == 1).all())
        assert bool((bias == 0).all())


def classifier(*seeds: int, **options: object) -> TokenClassifier:
    own = seeded(*seeds)
    encoder = TrainedEncoder(EncoderConfig(6, 8, 2, d_ff=12), SCHEMES["post_ln"], own)
    return TokenClassifier(encoder, 10, 7, own, **options)  # type: ignore[arg-type]  # tensors


def test_a_member_starts_as_the_separate_run_of_its_seed() -> None:
    ensemble = dict(classifier(3, 4, 5).named_parameters())
    for e, seed in enumerate((3, 4, 5)):
        for name, alone in classifier(seed).named_parameters():
            assert torch.equal(ensemble[name][e], alone[0]), name
    assert not torch.equal(ensemble["embedding"][0], ensemble["embedding"][1])


def test_members_do_not_mix() -> None:
    """The loss of one member has no gradient in the others, and ignores their NaN."""
    model = classifier(1, 2, 3)
    tokens = torch.randint(10, (3, 4, 6), generator=seeded(7)[0])
    before = model(tokens).detach()
    model(tokens)[1].square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert bool((p.grad[[0, 2]] == 0).all()), name
        assert bool((p.grad[1] != 0).any()), name
    with torch.no_grad():
        for p in model.parameters():
            p[2] = torch.nan
    after = model(tokens).detach()
    assert torch.equal(after[:2], before[:2])
    assert bool(after[2].isnan().all())


class Plain(nn.Module):
    """The same network written the ordinary way, with torch.nn."""

    def __init__(self, d: int, d_ff: int, depth: int, n: int, alpha: float) -> None:
        super().__init__()
        self.embedding, self.readout = nn.Embedding(10, d), nn.Linear(d, 7)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            layer = nn.Module()
            for name, (i, o) in {"ff1": (d, d_ff), "ff2": (d_ff, d)}.items():
                layer.add_module(name, nn.Linear(i, o, bias=False))
            for name in ("q", "k", "v"):
                layer.add_module(name, nn.Linear(d, d, bias=False))
            layer.add_module("attention", nn.LayerNorm(d))
            layer.add_module("feed_forward", nn.LayerNorm(d))
            self.layers.append(layer)
        k = torch.arange(n).double()[:, None] / 10000 ** (torch.arange(0, d, 2).double() / d)
        self.positions = torch.zeros(n, d)
        self.positions[:, 0::2], self.positions[:, 1::2] = k.sin(), k.cos()
        self.alpha = alpha

    def forward(self, tokens: Tensor, tau: float) -> Tensor:
        x = self.embedding(tokens) + self.positions.to(self.embedding.weight)
        for m in self.layers:
            q, k, v = m.q(x), m.k(x), m.v(x)
            a = functional.scaled_dot_product_attention(q, k, v, scale=tau / math.sqrt(q.shape[-1]))
            x = m.attention(x + self.alpha * a)
            x = m.feed_forward(x + self.alpha * m.ff2(m.ff1(x).relu()))
        return self.readout(x)

    def load(self, model: TokenClassifier, e: int) -> None:
        encoder = model.encoder
        with torch.no_grad():
            self.embedding.weight.copy_(model.embedding[e])
            self.readout.weight.copy_(model.readout[e].T)
            self.readout.bias.copy_(model.readout_bias[e])
            for l, layer in enumerate(self.layers):
                for family, w in encoder.weights.items():
                    getattr(layer, family).weight.copy_(w[e, l].T)
                for branch in ("attention", "feed_forward"):
                    getattr(layer, branch).weight.copy_(encoder.gains[branch][e, l])
                    getattr(layer, branch).bias.copy_(encoder.biases[branch][e, l])


def test_plain_torch_gives_the_same_loss_and_gradients() -> None:
    own = seeded(1, 2)
    alphas = torch.tensor([1.0, 0.3])
    encoder = TrainedEncoder(
        EncoderConfig(6, 8, 2, d_ff=12),
        SCHEMES["post_ln"],
        own,
        strengths={"attention": alphas, "feed_forward": alphas},
    )
    model = TokenClassifier(encoder, 10, 7, own).double()
    jitter(model)
    tokens = torch.randint(10, (2, 4, 6), generator=own[0])
    targets = torch.randint(7, (2, 4, 6), generator=own[0])
    logits = model(tokens, tau=1.5)
    losses = functional.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
    losses.view(2, -1).mean(1).sum().backward()
    for e in range(2):
        assert encoder.strengths is not None
        plain = Plain(8, 12, 2, 6, float(encoder.strengths["attention"][e, 0])).double()
        plain.load(model, e)
        loss = functional.cross_entropy(plain(tokens[e], 1.5).flatten(0, 1), targets[e].flatten())
        loss.backward()
        torch.testing.assert_close(losses.view(2, -1)[e].mean(), loss, rtol=1e-7, atol=0)
        pairs = [
            (model.embedding.grad[e], plain.embedding.weight.grad),
            (model.readout.grad[e].T, plain.readout.weight.grad),
            (model.readout_bias.grad[e], plain.readout.bias.grad),
        ]
        for l, layer in enumerate(plain.layers):
            pairs += [
                (w.grad[e, l].T, getattr(layer, family).weight.grad)
                for family, w in encoder.weights.items()
            ]
            for branch in ("attention", "feed_forward"):
                pairs.append((encoder.gains[branch].grad[e, l], getattr(layer, branch).weight.grad))
                pairs.append((encoder.biases[branch].grad[e, l], getattr(layer, branch).bias.grad))
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_strengths_per_member_are_the_schemes_of_each() -> None:
    config, alphas = EncoderConfig(5, 8, 3), (1.0, 0.25)
    both = TrainedEncoder(
        config,
        SCHEMES["pre_ln"],
        seeded(1, 2),
        strengths={b: torch.tensor(alphas) for b in ("attention", "feed_forward")},
    )
    assert both.strengths is not None
    assert not any(p.requires_grad for p in both.strengths.parameters())
    x = torch.randn(2, 3, 5, 8, generator=seeded(3)[0])
    y = both(x)
    for e, alpha in enumerate(alphas):
        scheme = dataclasses.replace(
            SCHEMES["pre_ln"], alpha_attn=Strength(alpha), alpha_ff=Strength(alpha)
        )
        alone = TrainedEncoder(config, scheme, seeded(e + 1))
        torch.testing.assert_close(y[e], alone(x[e : e + 1])[0], rtol=1e-5, atol=1e-5)


def test_trained_strengths_start_at_the_scheme_and_get_gradients() -> None:
    plain = TrainedEncoder(EncoderConfig(5, 8, 4), SCHEMES["no_ln_scaled"], seeded(1))
    scheme = dataclasses.replace(SCHEMES["no_ln_scaled"], train_strengths=True)
    encoder = TrainedEncoder(EncoderConfig(5, 8, 4), scheme, seeded(1))
    x = torch.randn(1, 3, 5, 8, generator=seeded(3)[0])
    torch.testing.assert_close(encoder(x), plain(x), rtol=1e-5, atol=1e-6)
    encoder(x).square().sum().backward()
    assert encoder.strengths is not None
    for alpha in encoder.strengths.values():
        assert torch.equal(alpha.detach(), torch.full((1, 4), 0.5))
        assert bool((alpha.grad != 0).all())


def test_temperature_zero_is_uniform_attention() -> None:
    encoder = TrainedEncoder(EncoderConfig(5, 8, 1), SCHEMES["no_ln"], seeded(1))
    x = torch.randn(1, 3, 5, 8, generator=seeded(3)[0])
    hot, cold = encoder(x, tau=0.0), encoder(x)

    def project(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        return tuple(z @ encoder.weights[f][0, 0] for f in widths)

    uniform = block(x, project, SCHEMES["no_ln"], 1, attention="uniform").x
    torch.testing.assert_close(hot, uniform, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(cold, uniform, rtol=1e-2)
    two = TrainedEncoder(EncoderConfig(5, 8, 1), SCHEMES["no_ln"], seeded(1, 1))
    each = two(x.expand(2, -1, -1, -1), tau=torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(each[0], hot[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(each[1], cold[0], rtol=1e-5, atol=1e-5)


def test_input_is_scaled_and_shifted_per_member() -> None:
    scale, offset = torch.tensor([0.5, 0.0]), torch.randn(2, 8, generator=seeded(8)[0])
    model = classifier(1, 2, scale=scale, offset=offset)
    tokens = torch.randint(10, (2, 4, 6), generator=seeded(7)[0])
    x = model.embed(tokens)
    for e in range(2):
        plain = model.embedding[e][tokens[e]] + sinusoids(6, 8)
        torch.testing.assert_close(x[e], scale[e] * plain + offset[e])
    assert torch.equal(x[1], offset[1].expand(4, 6, 8))


@pytest.mark.parametrize("d", [3, 32])
def test_standardize_is_torchs_layer_norm(d: int) -> None:
    """Value and gradient, float64; gradcheck compares with finite differences besides."""
    x = torch.randn(2, 3, 5, d, generator=seeded(1)[0], dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 3, 5, d, generator=seeded(2)[0], dtype=torch.float64)
    ours, theirs = standardize(x), functional.layer_norm(x, (d,))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (found,), (expected,) = (torch.autograd.grad(y, x, g) for y in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(standardize, x[:1, :1, :2])
    equal = torch.full((1, 2, d), 3.0, dtype=torch.float64, requires_grad=True)  # a spread of 0
    standardize(equal).sum().backward()
    assert bool((standardize(equal) == 0).all()) and bool(equal.grad.isfinite().all())


def test_norms_without_gains_are_gains_of_one() -> None:
    config, scheme = EncoderConfig(5, 8, 3), SCHEMES["pre_ln"]
    x = torch.randn(2, 3, 5, 8, generator=seeded(3)[0])
    bare = TrainedEncoder(config, scheme, seeded(1, 2), train_norms=False)
    torch.testing.assert_close(bare(x), TrainedEncoder(config, scheme, seeded(1, 2))(x))
    assert {name.split(".")[0] for name, _ in bare.named_parameters()} == {"weights"}


def test_counts_stand_for_equal_tokens() -> None:
    """Without positions: two of one symbol and one of another, written out or counted."""
    model = classifier(1, 2, positions=False)
    written = torch.tensor([[[4, 4, 7]]]).expand(2, -1, -1)
    once = torch.tensor([[[4, 7, 9]]]).expand(2, -1, -1)
    counted = model(once, counts=torch.tensor([2.0, 1.0, 0.0]))
    torch.testing.assert_close(counted[:, :, :2], model(written)[:, :, 1:])
    assert not torch.allclose(model(once)[:, :, :2], counted[:, :, :2], rtol=1e-2)
    assert bool(counted.isfinite().all())


def test_sinusoids() -> None:
    """Rows are (sin, cos) pairs on unit circles, at the angles of the formula."""
    pos = sinusoids(20, 16)
    assert pos.dtype == torch.float32
    pairs = pos.view(20, 8, 2)
    torch.testing.assert_close(pairs.square().sum(-1), torch.ones(20, 8))
    assert float(pos[3, 4]) == pytest.approx(math.sin(3 / 10000 ** (4 / 16)), abs=1e-6)
    assert float(pos[3, 5]) == pytest.approx(math.cos(3 / 10000 ** (4 / 16)), abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoids(4, 7), "d_model must be even for sinusoidal positions, got 7"),
        (
            lambda: TrainedEncoder(EncoderConfig(4, 8, 1), SCHEMES["no_ln"], []),
            "generators must hold one generator per member, got none",
        ),
        (
            lambda: TrainedEncoder(
                EncoderConfig(4, 8, 1, attention="uniform"), SCHEMES["no_ln"], seeded(1)
            ),
            "attention 'uniform' with 'gaussian' weights is not trained",
        ),
        (
            lambda: TrainedEncoder(
                EncoderConfig(4, 8, 1),
                SCHEMES["no_ln"],
                seeded(1, 2),
                strengths={b: torch.ones(3) for b in ("attention", "feed_forward")},
            ),
            r"strengths\['attention'\] must be \(2,\), got \(3,\)",
        ),
        (lambda: classifier(1, 2, scale=torch.ones(3)), r"scale must be \(2,\), got \(3,\)"),
        (lambda: classifier(1, 2, offset=torch.ones(2, 3)), r"offset must be \(2, 8\), got \(2, 3"),
    ],
)
def test_refuses(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_a_scheme_of_ones_own_is_obeyed() -> None:
    """Trained weights go through the same block: a strength of zero leaves the input."""
    off = Scheme("off", "off", "none", Strength(0.0), Strength(0.0))
    x = torch.randn(1, 3, 5, 8, generator=seeded(3)[0])
    assert torch.equal(TrainedEncoder(EncoderConfig(5, 8, 2), off, seeded(1))(x), x)


def test_counts_and_positions_exclude_each_other() -> None:
    for scheme, positions in (("post_ln_rotary", False), ("post_ln", True)):
        encoder = TrainedEncoder(EncoderConfig(3, 8, 1), SCHEMES[scheme], seeded(1))
        model = TokenClassifier(encoder, 4, 4, seeded(1), positions=positions)
        tokens = torch.tensor([[[0, 1, 2]]])
        assert model(tokens).shape == (1, 1, 3, 4)
        with pytest.raises(ValueError, match="counts stand for equal tokens, which positions"):
            model(tokens, counts=torch.ones(3))
