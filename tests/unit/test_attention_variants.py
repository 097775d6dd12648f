"""Every attention variant: samplers that cover it agree in law, the others refuse."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sigprop.experiments.propagation import theory as propagation_theory
from sigprop.experiments.propagation.settings import PropagationSettings
from sigprop.instruments.end_to_end import gradient_norms
from sigprop.instruments.propagation import measure
from sigprop.models import schemes
from sigprop.models.attention import ATTENTION_VARIANTS, vary
from sigprop.models.block import block
from sigprop.models.coordinates import CoordinateSampler
from sigprop.models.decoding import Search, beam_search, greedy_search
from sigprop.models.encoder import EncoderConfig, make_sampler, stream
from sigprop.models.gradient_coordinates import CoordinateGradients
from sigprop.models.gradients import ExplicitGradients, LawGradients, make_gradient_sampler
from sigprop.models.samplers import ExplicitSampler, LawSampler
from sigprop.models.schemes import SCHEMES, Scheme
from sigprop.models.seq2seq import Seq2Seq, Seq2SeqConfig
from sigprop.models.trained import TrainedEncoder

VARIANTS = list(ATTENTION_VARIANTS)
CONFIG = EncoderConfig(n_tokens=3, d_model=48, depth=2, n_heads=2, d_ff=40)
NETWORKS = 800


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scheme(variant: str) -> Scheme:
    return replace(SCHEMES["post_ln"], tau=1.5, attention=variant)


def tokens(n_networks: int = NETWORKS) -> Tensor:
    """One input for all, with tokens that are correlated."""
    x = torch.randn(3, 48, generator=seeded(0), dtype=torch.float64)
    return (x + x.mean(0)).expand(n_networks, -1, -1).contiguous()


def written(q: Tensor, k: Tensor, variant: str) -> Tensor:
    """Logits at tau = 1 of one head, (..., n, d_k) -> (..., n, n), from the definitions."""
    d_k = q.shape[-1]
    if variant == "qk_norm":
        return d_k**0.5 * nn.functional.cosine_similarity(
            q[..., :, None, :], k[..., None, :, :], -1
        )
    if variant == "rotary":
        j = torch.arange(d_k // 2, dtype=q.dtype)
        turn = torch.polar(
            torch.ones(()).to(q), torch.arange(q.shape[-2])[:, None] * 1e4 ** (-2 * j / d_k)
        )
        q, k = (torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn for y in (q, k))
        return (q @ k.mH).real / d_k**0.5
    return q @ k.mT / d_k**0.5


def by_autograd(variant: str, seed: int) -> dict[str, Tensor]:
    """Entropy, token cosine and weight gradients of explicit networks written out, (L, B)."""
    g, one = seeded(seed), scheme(variant)
    x, d, h = tokens(), CONFIG.d_model, CONFIG.n_heads
    found: dict[str, list[Tensor]] = {}
    weights: list[tuple[str, Tensor]] = []

    def times(x: Tensor, family: str) -> Tensor:
        size = CONFIG.fans(family)
        std = one.variance(family, *size, depth=CONFIG.depth) ** 0.5
        w = std * torch.randn(len(x), *size, generator=g, dtype=x.dtype)
        weights.append((family, w.requires_grad_()))
        return x @ w

    def norm(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (d,), eps=1e-12)

    for _ in range(CONFIG.depth):
        q, k, v = (times(x, f).unflatten(-1, (h, -1)).transpose(1, 2) for f in "qkv")
        a = (1.5 * written(q, k, variant)).softmax(-1)
        found.setdefault("attention_entropy", []).append(torch.special.entr(a).sum(-1).mean((1, 2)))
        x = norm(x + times((a @ v).transpose(1, 2).flatten(2), "o"))
        x = norm(x + times(times(x, "ff1").relu(), "ff2"))
    readout = torch.randn(x.shape, generator=g, dtype=x.dtype)
    loss = (readout * x).sum() / (CONFIG.n_tokens * d) ** 0.5
    for (family, _), dw in zip(
        weights, torch.autograd.grad(loss, [w for _, w in weights]), strict=True
    ):
        found.setdefault(f"grad_{family}", []).append(dw.square().sum((1, 2)))
    found["cos_mean"] = [measure(x.detach())["cos_mean"]]
    return {name: torch.stack(values).detach() for name, values in found.items()}


def by_samplers(variant: str, forward: object, backward: object) -> dict[str, Tensor]:
    one = scheme(variant)
    states = list(stream(tokens(), CONFIG, one, forward, keep_attention=True))[1:]
    looks = [measure(state.x, state.attention) for state in states]
    found = {"attention_entropy": torch.stack([look["attention_entropy"] for look in looks])}
    found["cos_mean"] = looks[-1]["cos_mean"][None]
    gradients = gradient_norms(tokens(), CONFIG, one, backward)
    return found | {name: gradients[name] for name in gradients if name != "grad_x"}


FORWARD = {
    "explicit": lambda: ExplicitSampler(seeded(2)),
    "law": lambda: LawSampler(seeded(3)),
    "coordinates": lambda: CoordinateSampler(seeded(4), 3, 48, 2),
}
BACKWARD = {
    "explicit": lambda: ExplicitGradients(seeded(5)),
    "law": lambda: LawGradients(seeded(6)),
    "coordinates": lambda: CoordinateGradients(seeded(7), 3, 48, 2, d_ff=40),
}
COVERED = {"dot_product": 3, "qk_norm": 2, "rotary": 1}  # the first so many of them


@pytest.mark.parametrize("variant", VARIANTS)
def test_samplers_agree_in_law_or_refuse(variant: str) -> None:
    """Means over networks of logarithms, against explicit weights and automatic differentiation."""
    exact = by_autograd(variant, 1)
    for i, kind in enumerate(FORWARD):
        forward, backward = FORWARD[kind](), BACKWARD[kind]()
        if i >= COVERED[variant]:
            with pytest.raises(ValueError, match=f"attention '{variant}' needs"):
                next(stream(tokens(2), CONFIG, scheme(variant), forward))
            with pytest.raises(ValueError, match=f"attention '{variant}' needs"):
                gradient_norms(tokens(2), CONFIG, scheme(variant), backward)
            continue
        found = by_samplers(variant, forward, backward)
        assert found.keys() == exact.keys()
        for name, values in found.items():
            a, b = ((y.log() if "grad" in name else y) for y in (values, exact[name]))
            z = (a.mean(1) - b.mean(1)) / ((a.var(1) + b.var(1)) / NETWORKS).sqrt()
            assert z.abs().max() < 4.5, (kind, name, z)


@pytest.mark.parametrize("variant", VARIANTS)
def test_auto_picks_a_sampler_that_covers(variant: str) -> None:
    wide = replace(CONFIG, d_model=128)
    x = torch.randn(2, 3, 128, generator=seeded(1))
    forward = make_sampler(wide, seeded(0), variant=variant)
    backward = make_gradient_sampler(wide, seeded(0), variant=variant)
    expected = {
        "dot_product": (CoordinateSampler, CoordinateGradients),
        "qk_norm": (LawSampler, LawGradients),
        "rotary": (ExplicitSampler, ExplicitGradients),
    }[variant]
    assert (type(forward), type(backward)) == expected
    assert len(list(stream(x, wide, scheme(variant), forward))) == 3
    assert gradient_norms(x, wide, scheme(variant), backward)["grad_q"].isfinite().all()
    if variant == "rotary":
        for make in (make_sampler, make_gradient_sampler):
            with pytest.raises(ValueError, match=r"single features .* attention 'rotary' needs"):
                make(wide, seeded(0), "law", variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_jacobians_and_theory_cover_what_they_say(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = ExplicitGradients(seeded(0))
    if variant == "dot_product":
        gradient_norms(tokens(2), CONFIG, scheme(variant), sampler, local=True)
    else:
        with pytest.raises(ValueError, match=f"cover dot_product, not attention '{variant}'"):
            gradient_norms(tokens(2), CONFIG, scheme(variant), sampler, local=True)
    mine = {"post_ln": replace(SCHEMES["post_ln"], attention=variant)}
    monkeypatch.setattr("sigprop.experiments.schemes.SCHEMES", mine)
    common = {
        **{"scheme": ["post_ln"], "activation": ["relu"], "attention": ["softmax"], "rho": 0.1},
        **{"n_tokens": 3, "d_model": [16], "depth": [2], "sigma_x": [1.0], "n_networks": 2},
    }
    settings = PropagationSettings(**common, quantities=["cos_mean"])
    rows = propagation_theory.run(settings, None)
    assert bool(len(rows)) == (variant != "rotary")
    assert len(propagation_theory.run(settings.model_copy(update={"attention": ["uniform"]}), None))
    from sigprop.experiments.gradients.settings import GradientSettings

    if variant != "dot_product":
        with pytest.raises(ValueError, match="cover dot_product alone"):
            GradientSettings(**common, quantities=["grad_q"])
    if variant == "rotary":
        with pytest.raises(ValueError, match="sampler=law does not draw the features"):
            PropagationSettings(**common, quantities=["cos_mean"], sampler=["law"])
        with pytest.raises(ValueError, match="turns pairs of features, but a head has d_k = 5"):
            PropagationSettings(**common | {"d_model": [5]}, quantities=["cos_mean"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_what_is_written(variant: str) -> None:
    q, k = (torch.randn(2, 5, 8, generator=seeded(s), dtype=torch.float64) for s in (1, 2))
    logits = vary(q, variant, 8) @ vary(k, variant, 8).mT / 8**0.5
    torch.testing.assert_close(logits, written(q, k, variant))
    last = vary(k[:, 3:4], variant, 8, position=3)
    torch.testing.assert_close(last, vary(k, variant, 8)[:, 3:4])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("members", [False, True])
def test_trained_encoder_is_the_block(variant: str, members: bool) -> None:
    config = EncoderConfig(5, 16, 1, n_heads=2)
    model = TrainedEncoder(config, scheme(variant), [seeded(e) for e in range(2)]).double()
    x = torch.randn(2, 4, 5, 16, generator=seeded(9), dtype=torch.float64)
    taus = [0.5, 3.0] if members else [2.0, 2.0]
    found = model(x, tau=torch.tensor(taus) if members else 2.0)
    for e, tau in enumerate(taus):

        def project(z: Tensor, widths: dict[str, int], e: int = e) -> tuple[Tensor, ...]:
            return tuple(z @ model.weights[family][e, 0] for family in widths)

        def norm(z: Tensor, branch: str) -> Tensor:
            return nn.functional.layer_norm(z, (16,), eps=1e-5)

        one = replace(scheme(variant), tau=tau)
        out = block(x[e], project, one, 1, n_heads=2, norm=norm).x
        torch.testing.assert_close(found[e], out, rtol=1e-9, atol=1e-9)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_translation_learns_and_decodes_with_a_cache(variant: str) -> None:
    """Greedy search with cached keys finds what the whole prefix finds, step by step."""
    config = Seq2SeqConfig(19, 19, 16, 2, 2, n_heads=2, d_ff=24, max_tokens=16)
    own = replace(SCHEMES["pre_ln_xavier"], attention=variant)
    model = Seq2Seq(config, own, seeded(0))
    source = torch.randint(3, 19, (8, 5), generator=seeded(1))
    source[:3, 3:] = config.pad
    target = torch.cat([torch.ones(8, 1, dtype=torch.int64), source], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model.loss(source, target[:, :-1], target[:, 1:], tau=1.3)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.5  # of ln 16 = 2.8 by chance
    search = Search(start=1, end=2, beam=3, max_ratio=1.0, max_extra=2)
    model.double().eval()
    memory = model.remember(model.encode(source, tau=1.3), source)
    for row, (best, beams) in enumerate(
        zip(
            greedy_search(model, source, search, tau=1.3),
            beam_search(model, source, search, tau=1.3),
            strict=True,
        )
    ):
        own = memory.select(torch.tensor([row]))
        path = torch.tensor([[1, *best.tokens]])
        logits = (model.decode(path, own, tau=1.3) @ model.readout.T).detach()
        logits[..., :2] = -torch.inf
        logits[:, 0, 2] = -torch.inf
        assert logits.argmax(-1)[0, : len(best.tokens)].tolist() == list(best.tokens)
        beam = torch.tensor([[1, *beams[0].tokens, 2]])
        logits = (model.decode(beam[:, :-1], own, tau=1.3) @ model.readout.T).detach()
        logp = logits.log_softmax(-1)
        score = logp.gather(-1, beam[:, 1:, None]).sum() / (beam.shape[1] - 1)
        assert beams[0].score == pytest.approx(float(score), abs=1e-9)


def test_positions_enter_once() -> None:
    """Rotary self-attention knows the order of symbols, without sinusoids in the embedding."""
    config = Seq2SeqConfig(9, 9, 16, 1, 1, n_heads=2, d_ff=24)
    source = torch.tensor([[3, 4, 5]])
    for variant in VARIANTS:
        model = Seq2Seq(config, replace(SCHEMES["pre_ln_xavier"], attention=variant), seeded(0))
        states: list[Tensor] = []
        back = model.encode(source.flip(1), states=states).flip(1)
        assert (model.encode(source) - back).abs().max() > 1e-3
        own = 4 * model.source_embedding[source.flip(1)]
        assert torch.equal(states[0], own) == ATTENTION_VARIANTS[variant].positional


def test_a_scheme_with_an_unknown_attention() -> None:
    with pytest.raises(ValueError, match="attention 'qk_nrm' is unknown: did you mean 'qk_norm'"):
        replace(SCHEMES["post_ln"], attention="qk_nrm")
    assert schemes.Scheme("mine", "mine", "none").attention == "dot_product"
