"""A model of one's own: numbers as by hand, the model as before, one line for bad input."""

import copy
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from sigprop.cli import main as cli
from sigprop.cli.probe_report import report, table
from sigprop.instruments.end_to_end import gradient_norms
from sigprop.instruments.probe import Probe, named_parts, probe
from sigprop.instruments.propagation import measure
from sigprop.instruments.recording import find_blocks
from sigprop.models.block import block
from sigprop.models.encoder import EncoderConfig, stream
from sigprop.models.gradients import ExplicitGradients
from sigprop.models.samplers import ExplicitSampler
from sigprop.models.schemes import SCHEMES

CONFIG = EncoderConfig(n_tokens=5, d_model=12, depth=3, d_ff=16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=dtype)


class Layer(nn.Module):
    """A block of the package; its parameters are the weights that `ExplicitSampler` draws."""

    def __init__(self, scheme: str, sampler: ExplicitSampler) -> None:
        super().__init__()
        self.scheme = SCHEMES[scheme]
        for name in ("q", "k", "v", "ff1", "ff2"):
            fan_in, fan_out = CONFIG.fans(name)
            w = sampler._draw(1, fan_in, fan_out, torch.empty(0, dtype=torch.float64))[0]
            variance = self.scheme.variance(
                name, fan_in, fan_out, CONFIG.activation, depth=CONFIG.depth
            )
            setattr(self, name, nn.Parameter(math.sqrt(variance) * w))

    def forward(self, x: Tensor) -> Tensor:
        def project(z: Tensor, widths: Any) -> tuple[Tensor, ...]:
            return tuple(z @ getattr(self, name) for name in widths)

        return block(x, project, self.scheme, CONFIG.depth, d_ff=CONFIG.hidden).x


def package_encoder(scheme: str) -> nn.Sequential:
    sampler = ExplicitSampler(generator(3))
    return nn.Sequential(*(Layer(scheme, sampler) for _ in range(CONFIG.depth)))


def torch_encoder(
    depth: int = 4, *, batch_first: bool = True, nested: bool = False, **options: Any
) -> nn.Module:
    """`nn.TransformerEncoder` in float64 with weights of its own in every block."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first, **options)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=nested).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


class Twice(nn.Module):
    """x + linear(x), out of place or in place; returns a tensor or a tuple."""

    def __init__(self, d: int, *, inplace: bool = False, wrap: Callable[[Any], Any] | None = None):
        super().__init__()
        self.linear = nn.Linear(d, d, dtype=torch.float64)
        self.inplace, self.wrap = inplace, wrap

    def forward(self, x: Tensor) -> Any:
        y = self.linear(1.0 * x)  # a copy, or autograd would miss what in-place work overwrites
        x = x.add_(y) if self.inplace else x + y
        return self.wrap(x) if self.wrap else x


class Stack(nn.Module):
    """Blocks called h, applied one after the other to what `enter` makes of the input."""

    def __init__(self, *blocks: nn.Module, enter: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.h, self.enter = nn.ModuleList(blocks), enter

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.h:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def twice(depth: int = 3, d: int = 6, **options: Any) -> Stack:
    torch.manual_seed(1)
    return Stack(*(Twice(d, **options) for _ in range(depth)))


# ---------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("scheme", ["post_ln", "pre_ln_scaled"])
def test_the_packages_encoder_measures_as_by_its_own_instruments(scheme: str) -> None:
    x = normal(4, 5, 12)
    found = probe(package_encoder(scheme), x)
    states = stream(x[None], CONFIG, SCHEMES[scheme], ExplicitSampler(generator(3)))
    own = [measure(state.x[0]) for state in states]
    assert found.blocks == ("0", "1", "2") and found.stream["cos_mean"].shape == (4, 4)
    for name in own[0]:
        expected = torch.stack([at[name] for at in own])
        torch.testing.assert_close(found.stream[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scheme", ["post_ln", "pre_ln_scaled"])
def test_gradients_are_those_of_the_packages_own_instrument(scheme: str) -> None:
    x = normal(1, 5, 12)
    found = probe(package_encoder(scheme), x, readout=generator(7))
    own = gradient_norms(
        x,
        CONFIG,
        SCHEMES[scheme],
        ExplicitGradients(generator(3)),
        readout=normal(1, 5, 12, seed=7),
    )
    torch.testing.assert_close(found.stream["grad_x"], own["grad_x"], rtol=1e-9, atol=0)
    for name in ("q", "k", "v", "ff1", "ff2"):
        torch.testing.assert_close(
            found.parameters[name], own[f"grad_{name}"][:, 0], rtol=1e-8, atol=0
        )


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_statistics_of_a_torch_encoder_by_hand(norm_first: bool, batch_first: bool) -> None:
    model = torch_encoder(norm_first=norm_first, batch_first=batch_first)
    x = normal(3, 5, 8)
    found = probe(model, x if batch_first else x.transpose(0, 1))
    assert found.blocks == tuple(f"layers.{l}" for l in range(4))
    assert found.dtype == torch.float64 and found.parameters == found.attention == {}
    model.eval()
    for l in range(5):
        if l:
            x = model.layers[l - 1](x if batch_first else x.transpose(0, 1)).detach()
            x = x if batch_first else x.transpose(0, 1)
        for b in range(3):
            pairs = [(i, k) for i in range(5) for k in range(5) if i != k]
            inner = [float(x[b, i] @ x[b, k]) for i, k in pairs]
            norm = x[b].norm(dim=1)
            cosines = [v / float(norm[i] * norm[k]) for v, (i, k) in zip(inner, pairs, strict=True)]
            centred = x[b] - x[b].mean(0)
            for name, value in (
                ("cos_mean", sum(cosines) / 20),
                ("q", float(norm.square().sum()) / 5 / 8),
                ("p", sum(inner) / 20 / 8),
                ("rank_residual", float(centred.norm() / x[b].norm())),
                ("sum_sq_norm", float(norm.square().sum())),
            ):
                assert float(found.stream[name][l, b]) == pytest.approx(value, rel=1e-9), name


def test_padding_enters_no_number() -> None:
    model, x = torch_encoder(), normal(2, 6, 8)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    x[1, 4:] = 0  # a zero token would be refused
    options = {"readout": generator(1), "attention": True, "mask": real}
    found = probe(model, x, kwargs={"src_key_padding_mask": ~real}, **options)
    short = probe(model, x[1:, :4], attention=True)
    for name in ("cos_mean", "q", "q_minus_p", "rank_residual", "sum_inner"):
        torch.testing.assert_close(found.stream[name][:, 1:], short.stream[name])
    for name, values in short.attention.items():
        torch.testing.assert_close(found.attention[name][:, 1:], values)
    whole = probe(model, x[:1], attention=True)
    for name, values in whole.attention.items():
        torch.testing.assert_close(found.attention[name][:, :1], values)
    r = normal(2, 6, 8, seed=1)  # the readout of the last layer is its own gradient
    expected = torch.stack([r[0].square().sum() / 48, r[1, :4].square().sum() / 32])
    torch.testing.assert_close(found.stream["grad_x"][-1], expected)

    def readout(y: Tensor) -> Tensor:
        return (r[0] * y[0]).sum() / 48**0.5 + (r[1] * y[1])[:4].sum() / 32**0.5

    own = probe(model, x, kwargs={"src_key_padding_mask": ~real}, mask=real, loss=readout)
    torch.testing.assert_close(found.stream["grad_x"], own.stream["grad_x"])
    unmasked = probe(model, normal(2, 6, 8), attention=True, mask=real)
    assert "attend to tokens that mask calls padding" in unmasked.notes[0]
    assert unmasked.attention == {}


def test_torchs_fused_path_for_padded_text_is_not_taken() -> None:
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    options = {"kwargs": {"src_key_padding_mask": ~real}, "mask": real}
    x = normal(2, 6, 8)
    fused, plain = (probe(torch_encoder(nested=nested), x, **options) for nested in (True, False))
    assert all(torch.equal(values, plain.stream[name]) for name, values in fused.stream.items())


# ---------------------------------------------------------------- gradients


def test_gradients_of_a_loss_are_those_of_backward() -> None:
    model, x = torch_encoder(norm_first=True), normal(3, 5, 8)
    weights = normal(3, 5, 8, seed=2)
    found = probe(model, x, loss=lambda y: (y**2 * weights).sum())

    other = copy.deepcopy(model).eval()
    states = [x.clone().requires_grad_()]
    for layer in other.layers:
        states.append(layer(states[-1]))
        states[-1].retain_grad()
    (states[-1] ** 2 * weights).sum().backward()
    for l, state in enumerate(states):
        delta = state.grad
        torch.testing.assert_close(found.stream["grad_x"][l], delta.square().sum((1, 2)))
        torch.testing.assert_close(found.stream["g"][l], delta.square().sum((1, 2)) / 5)
        total = delta.sum(1).square().sum(1)
        torch.testing.assert_close(
            found.stream["h"][l], (total - delta.square().sum((1, 2))) / 20, rtol=1e-8, atol=1e-10
        )
    names = dict(other.layers[0].named_parameters()).keys() - {
        "self_attn.in_proj_weight",
        "self_attn.in_proj_bias",
    }
    thirds = {f"self_attn.{f}.{kind}" for f in "qkv" for kind in ("weight", "bias")}
    assert found.parameters.keys() == names | thirds
    for l, layer in enumerate(other.layers):
        own = dict(layer.named_parameters())
        for name in names:
            expected = own[name].grad.square().sum()
            torch.testing.assert_close(found.parameters[name][l], expected)
        for i, family in enumerate("qkv"):
            for kind in ("weight", "bias"):
                part = own[f"self_attn.in_proj_{kind}"].grad[8 * i : 8 * (i + 1)]
                torch.testing.assert_close(
                    found.parameters[f"self_attn.{family}.{kind}"][l],
                    part.square().sum(),
                    rtol=1e-8,
                    atol=1e-20,
                )


def test_blocks_that_work_in_place_give_the_same_numbers() -> None:
    plain, inplace = twice(), twice(inplace=True)
    inplace.load_state_dict(plain.state_dict())
    x = normal(2, 4, 6)
    a, b = (probe(m, x.clone(), readout=generator(1), blocks="h.*") for m in (plain, inplace))
    c = probe(inplace, x.clone())
    for name, values in a.stream.items():
        assert torch.equal(values, b.stream[name]), name
        assert name not in c.stream or torch.equal(values, c.stream[name]), name
    assert a.parameters.keys() == b.parameters.keys() == {"linear.weight", "linear.bias"}
    assert all(torch.equal(v, b.parameters[name]) for name, v in a.parameters.items())


def test_outputs_may_be_tuples_and_inputs_keywords() -> None:
    class Pair(NamedTuple):
        x: Tensor
        rest: int

    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList([Twice(6, wrap=lambda x: Pair(x, 1)) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.h:
                out = layer(x=x)
                assert isinstance(out, Pair) and out.rest == 1
                x = out.x
            return x

    torch.manual_seed(1)
    x, plain, model = normal(2, 4, 6), twice(2), Keyword()
    model.load_state_dict(plain.state_dict())
    wrapped = twice(2, wrap=lambda x: (x, None))
    a, b, c = (probe(m, x, readout=generator(1)) for m in (plain, model, wrapped))
    for other in (b, c):
        assert all(torch.equal(v, other.stream[name]) for name, v in a.stream.items())


def test_one_sequence_without_a_batch() -> None:
    x = normal(1, 4, 6)
    a, b = probe(twice(), x, readout=generator(1)), probe(twice(), x[0], readout=generator(1))
    assert all(torch.equal(v, b.stream[name]) for name, v in a.stream.items())


@pytest.mark.parametrize(
    "names", [("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("to_q", "to_k", "to_v")]
)
def test_queries_keys_and_values_by_their_usual_names(names: tuple[str, ...]) -> None:
    block = nn.ModuleDict({name: nn.Linear(2, 2) for name in (*names, "out")})
    found = [name for (name,), _ in named_parts(nn.ModuleDict({"attn": block}))]
    kinds = ("weight", "bias")
    assert found == [f"attn.{f}.{kind}" for f in (*"qkv", "out") for kind in kinds]


def test_projections_of_a_cross_attention_are_told_apart() -> None:
    cross = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
    names = [name for parts, _ in named_parts(cross) for name in parts]
    assert set(names) > {"q", "k", "v", "q.bias", "k.bias", "v.bias"}


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", ["", "causal", "causal floats", "per head"])
def test_attention_jacobians_are_those_of_automatic_differentiation(
    bias: bool, masked: str
) -> None:
    torch.manual_seed(2)
    n, d = 4, 6
    attention = nn.MultiheadAttention(d, 2, bias=bias, batch_first=True).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    mask = {
        "": None,
        "causal": hidden,
        "causal floats": torch.zeros(n, n).double().masked_fill(hidden, -math.inf),
        "per head": torch.stack([hidden, hidden.mT, hidden, torch.zeros_like(hidden)]),
    }[masked]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attn(x, x, x, attn_mask=mask)[0]

    x = normal(2, n, d)
    found = probe(Model(), x, attention=True, blocks="attn")
    assert found.notes == ()

    def output(w: Tensor) -> Tensor:
        changed = {"in_proj_weight": w}
        return torch.func.functional_call(attention, changed, (x, x, x), {"attn_mask": mask})[0]

    jacobian = torch.func.jacrev(output)(attention.in_proj_weight)  # (B, n, d, 3d, d)
    for i, family in enumerate("qkv"):
        expected = jacobian[..., d * i : d * (i + 1), :].square().sum((1, 2, 3, 4))
        torch.testing.assert_close(
            found.attention[f"jacobian_{family}"][0], expected.detach(), rtol=1e-9, atol=1e-12
        )
    _, weights = attention(x, x, x, attn_mask=mask, average_attn_weights=False)
    entropy = torch.special.entr(weights).sum(-1).mean((1, 2)).detach()
    torch.testing.assert_close(found.attention["attention_entropy"][0], entropy)


def test_what_attention_read_is_kept_though_the_block_changes_it() -> None:
    class InPlace(nn.Module):
        def __init__(self, inplace: bool) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.attn = nn.MultiheadAttention(6, 2).double()
            self.inplace = inplace

        def forward(self, x: Tensor) -> Tensor:
            y = self.attn(x, x, x)[0]
            return x.add_(y) if self.inplace else x + y

    x = normal(4, 2, 6)
    a, b = (probe(Stack(InPlace(i)), x.clone(), blocks="h.*", attention=True) for i in (0, 1))
    assert a.attention.keys() == b.attention.keys() and "attn.jacobian_q" in a.attention
    assert all(torch.equal(v, b.attention[name]) for name, v in a.attention.items())


@pytest.mark.parametrize(
    ("options", "call", "says"),
    [
        ({}, lambda m, x: m(x, x + 1, x), "read different tensors"),
        ({"add_bias_kv": True}, lambda m, x: m(x, x, x), "a token of its own"),
        ({"add_zero_attn": True}, lambda m, x: m(x, x, x), "a token of its own"),
        ({}, lambda m, x: m(x, x, x, attn_mask=torch.ones(4, 4).double()), "adds numbers to"),
    ],
)
def test_attention_without_exact_norms_is_noted(
    options: dict[str, bool], call: Callable[..., Any], says: str
) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(6, 2, batch_first=True, **options).double()

        def forward(self, x: Tensor) -> Tensor:
            return call(self.attn, x)[0]

    for depth, where in ((1, "'h.0.attn'"), (3, "'h.0.attn' to 'h.2.attn'")):
        model = Stack(*(Block() for _ in range(depth)))
        found = probe(model, normal(2, 4, 6), blocks="h.*", attention=True)
        assert found.attention == {} and len(found.notes) == 1
        assert found.notes[0].startswith(f"attention of {where}: not measured, ")
        assert says in found.notes[0]


def test_of_an_attention_that_runs_twice_the_first_call_counts() -> None:
    class Again(nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.attn = nn.MultiheadAttention(6, 2, batch_first=True).double()
            self.times = times

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = x + self.attn(x, x, x)[0]
            return x

    x = normal(2, 4, 6)
    once, again = (probe(Stack(Again(k)), x, blocks="h.*", attention=True) for k in (1, 2))
    assert all(torch.equal(v, again.attention[name]) for name, v in once.attention.items())
    assert once.notes == () and "the numbers are those of its first call" in again.notes[0]


def test_blocks_without_attention_are_noted() -> None:
    assert (
        "call no nn.MultiheadAttention" in probe(twice(), normal(2, 4, 6), attention=True).notes[0]
    )


# ---------------------------------------------------------------- nothing is left behind


class Stateful(nn.Module):
    """A block with a buffer that it changes, one that it replaces, random numbers, and a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, dtype=torch.float64)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("cache", None)
        self.codes = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.cache = x.detach()
        torch.rand(1)
        if self.fail:
            raise RuntimeError("no more")
        return x + self.linear(x)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "mode": [m.training for m in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "random": torch.get_rng_state(),
        "grad": torch.is_grad_enabled(),
        "fast": torch.backends.mha.get_fastpath_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("options", [{}, {"readout": 1}, {"training": True, "readout": 1}])
def test_the_model_is_left_as_it_was(fails: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(4)
    torch.backends.mha.set_fastpath_enabled(True)  # the default
    model = Stack(*(Stateful() for _ in range(3)))
    model(normal(2, 4, 6)).sum().backward()
    for module in model.h:
        module.cache = None
    model.h[1].eval()
    model.h[0].linear.weight.requires_grad_(False)
    model.h[2].fail = fails
    before = state_of(model)
    options = options | ({"readout": generator(1)} if "readout" in options else {})
    if fails:
        with pytest.raises(RuntimeError, match="no more"):
            probe(model, normal(2, 4, 6), **options)
    else:
        found = probe(model, normal(2, 4, 6), **options)
        if options:  # gradients of frozen weights too
            assert found.parameters["linear.weight"].min() > 0
    after = state_of(model)
    assert [name for name in before if not same(before[name], after[name])] == []
    assert all(module.cache is None for module in model.h)


def test_results_are_the_same_afterwards_and_gradients_need_no_grad_mode() -> None:
    model, x = torch_encoder().eval(), normal(2, 5, 8)
    before = model(x)
    with torch.no_grad():
        found = probe(model, x, readout=generator(1), attention=True)
    with torch.inference_mode():
        again = probe(model, x.clone(), readout=generator(1))
    torch.testing.assert_close(again.stream["g"], found.stream["g"])
    assert torch.equal(model(x), before) and not x.requires_grad


def test_dropout_is_off_unless_asked_for() -> None:
    model, x = torch_encoder(dropout=0.5), normal(2, 5, 8)
    model.train()
    torch.manual_seed(0)
    quiet, again, loud = probe(model, x), probe(model, x), probe(model, x, training=True)
    assert torch.equal(quiet.stream["q"], again.stream["q"])
    assert not torch.equal(quiet.stream["q"][1:], loud.stream["q"][1:])


# ---------------------------------------------------------------- which blocks


def test_the_longest_list_of_one_type_is_found() -> None:
    model = nn.Module()
    model.first = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))  # mixed
    model.enc = nn.Module()
    model.enc.h = nn.ModuleList([nn.Linear(2, 2)] + [nn.Linear(2, 2) for _ in range(2)])
    model.short = nn.ModuleList([nn.ReLU(), nn.ReLU()])
    assert list(find_blocks(model)) == ["enc.h.0", "enc.h.1", "enc.h.2"]
    assert list(find_blocks(model, "short.*")) == ["short.0", "short.1"]
    assert list(find_blocks(model, "*.h.[12]")) == ["enc.h.1", "enc.h.2"]
    assert list(find_blocks(nn.Sequential(nn.ReLU(), nn.ReLU()))) == ["0", "1"]


@pytest.mark.parametrize(
    ("model", "pattern", "says"),
    [
        (nn.Linear(2, 2), None, "Linear holds no list of modules of one type; name its blocks"),
        (nn.Sequential(nn.ReLU()), None, "Sequential holds no list of modules of one type"),
        (
            nn.Transformer(8, 2, 3, 3, 8, batch_first=True),
            None,
            "several lists hold 3 modules of one type; choose from 'encoder.layers.*', "
            "'decoder.layers.*'",
        ),
        (torch_encoder(), "layer.*", "no module is called 'layer.*'; did you mean 'layers.*'?"),
        (torch_encoder(), "layers", "'layers' is a list of modules; did you mean 'layers.*'?"),
        (torch_encoder(), "*", "'layers' is a list of modules; did you mean 'layers.*'?"),
    ],
)
def test_blocks_that_are_not_found(model: nn.Module, pattern: str | None, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        find_blocks(model, pattern)
    assert says in str(raised.value) and "\n" not in str(raised.value)


# ---------------------------------------------------------------- what cannot be measured


class Doing(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def refuses(error: type[Exception], model: nn.Module, x: Any, **options: Any) -> str:
    with pytest.raises(error) as raised:
        probe(model, x, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_streams_that_cannot_be_measured() -> None:
    x = normal(2, 4, 6)
    for function, says in (
        (
            lambda x: {"x": x},
            "the output of block 'h.1' is a dict; it must be a tensor, or a tuple",
        ),
        (lambda x: x.long(), "the output of block 'h.1' is int64 of shape (2, 4, 6); the stream"),
        (lambda x: x.sum(), "of shape ()"),
        (lambda x: x[:0], "of shape (0, 4, 6)"),
        (lambda x: x[:, :2], "has shape (2, 2, 6), the input of block 'h.0' has (2, 4, 6); choose"),
    ):
        model = Stack(Doing(lambda x: x), Doing(function))
        assert says in refuses(ValueError, model, x, blocks="h.*")
    model = Stack(Doing(lambda x: x), Doing(lambda x: x / 0))
    assert "the output of block 'h.1' is not finite" in refuses(FloatingPointError, model, x)
    model = Stack(Doing(lambda x: x), Doing(lambda x: x * torch.arange(4)[:, None]))
    assert "the output of block 'h.1' has a token that is zero" in refuses(ValueError, model, x)
    assert "at least two tokens" in refuses(ValueError, twice(), x[:, :1])


def test_blocks_that_do_not_run_once() -> None:
    x, idle = normal(2, 4, 6), twice()
    idle.h[1].forward = lambda x: x
    skipping = Stack(*idle.h)
    skipping.forward = lambda x: skipping.h[0](x)
    assert "block 'h.1' did not run" in refuses(ValueError, skipping, x)
    looping = twice(2)
    looping.forward = lambda x: looping.h[0](looping.h[0](x))
    assert "block 'h.0' runs twice in one forward pass" in refuses(ValueError, looping, x)


def test_losses_that_do_not_fit() -> None:
    x, model = normal(2, 4, 6), twice()
    assert "give one" in refuses(ValueError, model, x, loss=torch.sum, readout=generator(1))
    for loss, says in (
        (lambda y: y, "loss gives (2, 4, 6); it must be a scalar tensor"),
        (lambda y: 1.0, "loss gives float; it must be a scalar tensor"),
        (lambda y: y.detach().sum(), "loss does not depend on the blocks"),
        (lambda y: model.h[2].linear.weight.sum(), "loss does not depend on the input of block 'h"),
    ):
        assert says in refuses(ValueError, model, x, loss=loss)
    cut = Stack(Twice(6), Doing(lambda x: x.detach()), Twice(6))
    said = refuses(ValueError, cut, x, readout=generator(1), blocks="h.*")
    assert "loss does not depend on the input of block 'h.0', or the model detaches it" in said

    def steep(x: Tensor) -> Tensor:
        return x + (x - x.detach()).abs().sqrt()

    said = refuses(FloatingPointError, model, x, loss=lambda y: steep(y).sum())
    assert "the gradient of 'linear.weight' in block 'h.0' is not finite" in said
    bare = Stack(Doing(lambda x: x), Doing(steep))
    said = refuses(FloatingPointError, bare, x, readout=generator(1))
    assert "the gradient at the input of block 'h.0' is not finite" in said


def test_masks_that_do_not_fit() -> None:
    x, model = normal(2, 4, 6), twice()
    for mask, says in (
        (
            torch.ones(2, 4),
            "mask is float32 of shape (2, 4); it must be boolean, (batch, n) = (2, 4)",
        ),
        (torch.ones(4, 2, dtype=torch.bool), "mask is bool of shape (4, 2)"),
        (torch.tensor([[True] * 4, [True] + [False] * 3]), "mask leaves sequence 1 fewer than two"),
    ):
        assert says in refuses(ValueError, model, x, mask=mask)


# ---------------------------------------------------------------- the command

MODEL = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Shape:
    n: int

def build():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(3, 5, 8)

def options():
    model, x = build()
    return model, (x,), {"loss": lambda y: (y ** 2).sum(), "mask": torch.ones(3, 5) > 0}

def raising():
    raise KeyError("no weights\\nhere")

def leaving():
    raise SystemExit(3)

def broken():
    return build()[0], torch.randn(3, 5, 9)

def quiet_error():
    class Bad(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        def forward(self, x):
            raise ValueError
    return Bad(), torch.randn(3, 5, 2)

def infinite():
    model, x = build()
    return model, x * float("inf")

def nothing(): return None
def four(): return 1, 2, 3, 4
def no_model(): return build, torch.randn(2)
def no_inputs(): return build()[0], [1]
def no_options(): return (*build(), [1])
def misspelt(): return (*build(), {"los": 1})
def bad_mask(): return (*build(), {"mask": [True]})
def bad_loss(): return (*build(), {"loss": 1})
def needs(x): return build()
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine_of_test_probe.py"
    path.write_text(MODEL)
    return str(path)


def made(path: str, name: str = "build") -> Probe:
    """The same from Python, with the command's seeds."""
    from sigprop.cli.probe import load_function, measured

    return measured(load_function(f"{path}:{name}"), gradients=True, attention=True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_command_writes_every_number_and_prints_the_page(
    mine: str, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / f"table{suffix}"
    cli.main(["probe", f"{mine}:build", "--gradients", "--attention", "-o", str(output)])
    found = made(mine)
    assert capsys.readouterr().out == report(found) + "\n"
    if suffix == ".csv":  # pandas' usual parser rounds a last digit now and then
        got = pd.read_csv(output, float_precision="round_trip")
    else:
        got = pd.read_parquet(output)
    got = got.fillna({"part": ""}).astype({"sequence": "Int64"})
    pd.testing.assert_frame_equal(got, table(found), check_dtype=False, check_exact=True)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    sizes = got.groupby("quantity").size()
    assert sizes["cos_mean"] == sizes["grad_x"] == 5 * 3 and sizes["jacobian_q"] == 4 * 3
    row = got[(got["quantity"] == "grad_parameter") & (got["part"] == "self_attn.v.weight")]
    assert row["layer"].tolist() == [1, 2, 3, 4] and row["sequence"].isna().all()
    assert row["value"].tolist() == found.parameters["self_attn.v.weight"].tolist()
    assert row["block"].tolist() == [f"layers.{l}" for l in range(4)]


def test_the_page_shows_means_by_layer(mine: str) -> None:
    found = made(mine)
    lines = report(found).splitlines()
    assert lines[0] == "4 blocks, layers.0 to layers.3; 3 sequences; float32"
    heading = lines[2].split()
    last = dict(zip(heading, lines[7].split(), strict=True))
    assert last["layer"] == "4" and last["block"] == "layers.3"
    q, difference = (found.stream[name][4].mean().item() for name in ("q", "q_minus_p"))
    assert float(last["rho"]) == pytest.approx(1 - difference / q, rel=6e-3)
    assert float(last["1-rho"]) == pytest.approx(difference / q, rel=6e-3)
    assert float(last["dL/dx"]) == pytest.approx(found.stream["grad_x"][4].mean().item(), rel=6e-3)
    shown = {"self_attn.q.weight", "self_attn.k.weight", "self_attn.v.weight"}
    for name in shown:
        value = found.parameters[name][3].item()
        assert float(last[f"dL/d{name[10]}"]) == pytest.approx(value, rel=6e-3)
    rest = sum(v[3].item() for name, v in found.parameters.items() if name not in shown)
    assert float(last["dL/drest"]) == pytest.approx(rest, rel=6e-3)
    assert float(last["jacobian_v"]) == pytest.approx(
        found.attention["self_attn.jacobian_v"][3].mean().item(), rel=6e-3
    )
    assert lines[3].split()[:2] == ["0", "input"] and len(lines[3].split()) < len(heading)


def test_what_only_some_blocks_have_is_in_the_table_once() -> None:
    block = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).double()
    model = Stack(Twice(6), block)
    found = probe(model, normal(2, 4, 6), blocks="h.*", readout=generator(1), attention=True)
    assert found.parameters["linear.weight"].isnan().tolist() == [False, True]
    assert found.attention["self_attn.jacobian_q"].isnan().all(1).tolist() == [True, False]
    made = table(found)
    assert made["value"].notna().all()
    assert made[made["part"] == "linear.weight"]["layer"].tolist() == [1]
    assert made[made["quantity"] == "jacobian_q"]["layer"].tolist() == [2, 2]
    rows = report(found).splitlines()[3:6]
    assert len(rows[0].split()) < len(rows[1].split()) < len(rows[2].split())


def test_a_seed_gives_the_same_numbers(mine: str, tmp_path: Path) -> None:
    tables = []
    for i, seed in enumerate(("1", "1", "2")):
        output = str(tmp_path / f"{i}.parquet")
        cli.main(["probe", f"{mine}:build", "--gradients", "--seed", seed, "-o", output])
        tables.append(pd.read_parquet(output))
    assert tables[0].equals(tables[1]) and not tables[0].equals(tables[2])


def test_a_loss_and_a_mask_of_ones_own(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["probe", f"{mine}:options", "--blocks", "layers.[01]"])
    out = capsys.readouterr().out
    assert "2 blocks, layers.0 to layers.1" in out and "dL/dq" in out
    assert "exponents: not fitted, 2 blocks are too few; 4 are needed" in out


@pytest.mark.parametrize(
    ("model", "more", "says"),
    [
        ("mine.py", [], "model: 'mine.py' is not FILE.py:FUNCTION, e.g. mine.py:build"),
        ("mine.txt:build", [], "is not FILE.py:FUNCTION"),
        ("no.py:build", [], "model: 'no.py' does not exist"),
        ("{}:buil", [], "has no function 'buil'; did you mean 'build'?"),
        ("{}:number", [], "has no function 'number'"),
        ("{}:raising", [], "FUNCTION raises KeyError: 'no weights"),
        ("{}:leaving", [], "FUNCTION raises SystemExit: 3"),
        ("{}:broken", [], "the model raises "),
        ("{}:quiet_error", [], "ValueError"),
        ("{}:infinite", [], "the input of block 'layers.0' is not finite"),
        ("{}:nothing", [], "FUNCTION returns a NoneType; it must return model, inputs or model, "),
        ("{}:four", [], "FUNCTION returns a tuple of 4; it must return model, inputs or model, "),
        ("{}:no_model", [], "FUNCTION returns a function first; give a torch.nn.Module"),
        ("{}:no_inputs", [], "FUNCTION returns a list second; give a tensor, or a tuple"),
        ("{}:no_options", [], "FUNCTION returns a list third; give a dict"),
        ("{}:misspelt", [], "options: 'los' is not one of kwargs, loss, mask, batch_first, "),
        ("{}:bad_mask", [], "options: 'mask' is a list; give a Tensor"),
        ("{}:bad_loss", [], "options: 'loss' is a int; give a Callable"),
        ("{}:needs", [], "FUNCTION raises TypeError: needs() missing 1 required"),
        ("{}:build", ["--blocks", "h.*"], "blocks: no module is called 'h.*'"),
        ("{}:build", ["--seed", "-1"], "--seed: -1 is not allowed; use 0 to 2**63 - 1"),
        ("{}:build", ["--threads", "0"], "--threads: 0 is not allowed; use at least 1"),
        ("{}:build", ["-o", "table.txt"], "--output: 'table.txt' must end in .parquet or .csv"),
    ],
)
def test_bad_input_is_one_line(mine: str, model: str, more: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["probe", model.format(mine), *more])
    line = leaving.value.code
    assert isinstance(line, str) and line.startswith("sigprop: ") and says in line
    assert "\n" not in line


def test_a_file_that_does_not_run_is_one_line(tmp_path: Path) -> None:
    for text, says in (("1 +", "SyntaxError"), ("import no_such_module_x", "ModuleNotFoundError")):
        path = tmp_path / f"{says}_of_test_probe.py"
        path.write_text(text)
        with pytest.raises(SystemExit) as leaving:
            cli.main(["probe", f"{path}:build"])
        assert f"raises {says}" in leaving.value.code and "\n" not in leaving.value.code


def test_nothing_is_written_when_the_model_fails(mine: str, tmp_path: Path) -> None:
    output = tmp_path / "out" / "table.csv"
    with pytest.raises(SystemExit):
        cli.main(["probe", f"{mine}:broken", "-o", str(output)])
    assert not list(output.parent.iterdir())


def test_the_traceback_may_be_asked_for(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGPROP_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no weights") as raised:
        cli.main(["probe", f"{mine}:raising"])
    assert isinstance(raised.value.__cause__, KeyError)


def test_from_a_shell_modules_beside_the_file_can_be_imported(mine: str, tmp_path: Path) -> None:
    (tmp_path / "beside_test_probe.py").write_text("from mine_of_test_probe import build\n")
    (tmp_path / "lazy.py").write_text(
        "def f():\n    import beside_test_probe as b\n    return b.build()"
    )
    command = [sys.executable, "-m", "sigprop", "probe", f"{tmp_path / 'lazy.py'}:f"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.startswith("4 blocks, layers.0 to layers.3")


# ---------------------------------------------------------------- the two exponents


class Contract(nn.Module):
    """Shrinks the tokens' distance from their mean by a, then everything by b."""

    def __init__(self, a: float, b: float = 1.0) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-2, keepdim=True)
        return self.b * (mean + self.a * (x - mean))


def exponents(found: Probe) -> dict[str, float]:
    lines = [line.split() for line in report(found).splitlines() if line.startswith("lambda_")]
    return {words[0]: float(words[2]) for words in lines}


@pytest.mark.parametrize("sequences", [1, 3])
def test_exponents_of_maps_known_by_hand(sequences: int) -> None:
    direction = torch.ones(6).double()
    x = direction + 1e-6 * normal(sequences, 4, 6)  # close to collapse: q keeps its size
    shrinking = probe(Stack(*(Contract(0.8) for _ in range(6))), x)
    assert exponents(shrinking) == {"lambda_a": pytest.approx(2 * math.log(0.8), abs=5e-4)}
    x = normal(sequences, 4, 6)
    growing = probe(Stack(*(Contract(1.0, 1.3) for _ in range(6))), x, readout=generator(1))
    found = exponents(growing)  # dLoss/dx^l = 1.3^(L - l) R
    assert found["lambda_g"] == pytest.approx(2 * math.log(1.3), abs=5e-3)
    assert found["lambda_a"] == pytest.approx(0, abs=1e-9)
    text = report(growing)
    assert "gradients grow towards the input" in text and "layers 3 to 6" in text
    assert ("+-" in text) == (sequences > 1)
    assert "tokens align" in report(shrinking)


@pytest.mark.parametrize(("depth", "first"), [(4, 2), (5, 3), (6, 3), (7, 4)])
def test_exponents_are_those_of_the_last_half(depth: int, first: int) -> None:
    early = [Contract(0.5) for _ in range(first)]  # layers 1 to `first` end where the fit begins
    late = [Contract(0.9) for _ in range(depth - first)]
    x = 1 + 1e-6 * normal(3, 4, 6)
    found = probe(Stack(*early, *late), x)
    assert exponents(found)["lambda_a"] == pytest.approx(2 * math.log(0.9), abs=5e-4)
    assert f"layers {first} to {depth}" in report(found)


def test_a_slope_within_its_error_says_nothing() -> None:
    class Wander(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn_like(x)

    torch.manual_seed(0)
    quiet = probe(Stack(*(Wander() for _ in range(6))), 3 * normal(3, 4, 40))
    assert "no change beyond the error" in report(quiet)


def test_exponents_are_not_fitted_to_rounding() -> None:
    torch.manual_seed(0)
    x = 1 + 1e-7 * normal(2, 4, 6, dtype=torch.float32)
    text = report(probe(Stack(*(Contract(0.5) for _ in range(6))), x))
    assert "lambda_a: not fitted, 1 - rho = " in text and "is the rounding of float32" in text


# ---------------------------------------------------------------- the page


def test_the_commands_of_the_page_run_and_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[2::-1])
    assert list(blocks) == ["text", "sh", "python"]
    monkeypatch.chdir(tmp_path)
    exec(blocks["python"], {})
    shown = blocks["text"].splitlines()
    for line in blocks["sh"].splitlines():
        program, *words = shlex.split(line)
        assert program == "sigprop"
        cli.main(words)
        printed = capsys.readouterr().out.splitlines()
        if line == "sigprop probe mine.py:post --gradients":
            # numbers aside, which differ by the last digit between machines
            assert shown[:3] == printed[:3]
            names = [row[:18] for row in printed]
            assert all(row[:18] in names for row in shown if row != "  ...")
    assert {path.name for path in tmp_path.glob("*.[pc]*")} >= {"post.parquet", "pre.csv"}


def test_help_says_that_the_file_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["probe", "--help"])
    assert leaving.value.code == 0 and "FILE.py is executed" in capsys.readouterr().out
