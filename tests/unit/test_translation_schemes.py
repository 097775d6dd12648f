"""Schemes of translation: initial weights, and which strengths are trained."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_translation import METHODS

from sigprop.models.schemes import ONE, SCHEMES
from sigprop.models.seq2seq import Seq2Seq, Seq2SeqConfig

CONFIG = Seq2SeqConfig(40, 50, 32, encoder_depth=2, decoder_depth=5, n_heads=4, d_ff=64)


def build(name: str, config: Seq2SeqConfig = CONFIG, **changes: object) -> Seq2Seq:
    return Seq2Seq(config, replace(SCHEMES[name], **changes), torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", METHODS)
def test_initial_variances(name: str) -> None:
    """Xavier, 2 / (fan_in + fan_out), times 1/2 for q, k, v but in T-Fixup, times gain^2."""
    config = replace(CONFIG, d_model=128, d_ff=256)
    model = build(name, config)
    half = 1.0 if name == "t_fixup" else 0.5
    for stack, gain in (
        (model.encoder, 0.67 * 2**-0.25 if name == "t_fixup" else 1.0),
        (model.decoder, (9 * 5) ** -0.25 if name == "t_fixup" else 1.0),
    ):
        for family, w in stack.weights.items():
            kind = family.removeprefix("cross_")
            expected = 2 / (w.shape[-2] + w.shape[-1]) * (half if kind in "qkv" else 1.0)
            expected *= gain**2 if kind in ("v", "o", "ff1", "ff2") else 1.0
            standard_error = expected * math.sqrt(2 / w.numel())
            assert w.square().mean().item() == pytest.approx(expected, abs=5 * standard_error)
    for embedding in (model.source_embedding, model.target_embedding):
        expected = 1 / 128 * ((9 * 5) ** -0.5 if name == "t_fixup" else 1.0)
        standard_error = expected * math.sqrt(2 / embedding.numel())
        assert embedding.square().mean().item() == pytest.approx(expected, abs=5 * standard_error)


def test_t_fixup_scales_the_same_draws() -> None:
    """0.67 N^(-1/4) in the encoder, (9 N)^(-1/4) in the decoder and for both embeddings."""
    scaled = build("t_fixup").state_dict()
    plain = build("t_fixup", gains=(), decoder_gains=None, embedding_gain=ONE).state_dict()
    factors = {"encoder": 0.67 * 2**-0.25, "decoder": 45**-0.25}
    for name, value in scaled.items():
        stack, family = name.split(".")[0], name.split(".")[-1]
        if stack in factors:
            scales = family.removeprefix("cross_") in ("v", "o", "ff1", "ff2")
            factor = factors[stack] if scales else 1.0
        else:
            factor = 45**-0.25
        torch.testing.assert_close(value, factor * plain[name], rtol=1e-6, atol=0)
    assert {"source_embedding", "target_embedding", "decoder.weights.cross_o"} <= set(scaled)


def test_rezero_is_the_identity_at_the_start_and_learns_its_strengths_first() -> None:
    model = build("rezero")
    source = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    target = torch.randint(1, 50, (3, 7), generator=torch.Generator().manual_seed(1))
    states: list[torch.Tensor] = []
    encoded = model.encode(source, states=states)
    assert len(states) == 3
    assert torch.equal(encoded, states[0])
    states.clear()
    decoded = model.decode(target, model.remember(encoded, source), states=states)
    assert torch.equal(decoded, states[0])

    model.loss(source, target[:, :-1], target[:, 1:]).backward()
    assert all(w.grad.abs().max() == 0 for w in model.encoder.weights.values())
    for w in model.decoder.weights.values():
        assert w.grad.abs().max() == 0
    for alpha in model.decoder.strengths.values():
        assert (alpha.grad != 0).all()
    # The encoder's output is read by cross-attention only, whose strength is still zero.
    for alpha in model.encoder.strengths.values():
        assert (alpha.grad == 0).all()


def test_residual_scaling_trains_a_strength_for_every_layer_and_branch() -> None:
    model = build("residual_scaling")
    source = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    target = torch.randint(1, 50, (3, 7), generator=torch.Generator().manual_seed(1))
    model.loss(source, target[:, :-1], target[:, 1:]).backward()
    found = {
        (stack, branch): alpha
        for stack in ("encoder", "decoder")
        for branch, alpha in getattr(model, stack).strengths.items()
    }
    assert set(found) == {
        ("encoder", "attention"),
        ("encoder", "feed_forward"),
        ("decoder", "attention"),
        ("decoder", "cross_attention"),
        ("decoder", "feed_forward"),
    }
    for (stack, _), alpha in found.items():
        depth = {"encoder": 2, "decoder": 5}[stack]
        assert alpha.shape == (1, depth)
        torch.testing.assert_close(alpha.detach(), torch.full((1, depth), depth**-0.5))
        assert (alpha.grad != 0).all()


@pytest.mark.parametrize("name", ["post_ln_xavier", "pre_ln_xavier", "t_fixup"])
def test_other_methods_have_fixed_strengths(name: str) -> None:
    assert not [n for n, _ in build(name).named_parameters() if "strengths" in n]
