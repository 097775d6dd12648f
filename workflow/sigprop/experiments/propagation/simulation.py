"""Forward propagation in random encoders: correlation, norm, rank and entropy by layer."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.propagation.settings import EncoderCase, PropagationSettings

# Bytes of activations that one batch of networks may hold at a time. Fixed, not measured, so that
# the split into batches (and with it every random number) is the same on every machine.
_BATCH_BYTES = 32 * 2**20


def run(settings: PropagationSettings, context: Context) -> pd.DataFrame:
    """Simulate every case of the sweep; one row per network, kept layer and quantity.

    `rho_ratio`, a ratio of sums over networks, has one row per layer with a null seed.

    Raises:
        FloatingPointError: activations overflowed; the message says where and what to do.
    """
    cases = list(settings.cases())
    total = sum(case.n_networks * case.depth for case in cases)
    frames = []
    with progress(total, context.table, "layer") as bar:
        for case in cases:
            frames += list(_case_rows(case, settings, context, bar))
    return pd.concat(frames, ignore_index=True)


def _case_rows(
    case: EncoderCase, settings: PropagationSettings, context: Context, bar: Any
) -> Iterator[pd.DataFrame]:
    sampler, layers, values = _simulate(case, settings, context, bar)
    factors = case.factors() | {"sampler": sampler}
    networks = np.arange(case.n_networks)
    for quantity, by_layer in values.items():
        if quantity not in settings.quantities:
            continue
        kept = layers[len(layers) - len(by_layer) :]  # attention has no layer 0
        yield tidy(
            PropagationSettings,
            factors | {"layer": np.repeat(kept, case.n_networks)},
            seed=np.tile(networks, len(kept)),
            quantity=quantity,
            value=by_layer.reshape(-1),
            source="simulation",
        )
    t, c = values["sum_sq_norm"].sum(1), values["sum_inner"].sum(1)  # (layers,)
    yield tidy(
        PropagationSettings,
        factors | {"layer": np.asarray(layers, dtype=np.int64)},
        quantity="rho_ratio",
        value=(c - t) / ((case.n_tokens - 1) * t),
        source="simulation",
    )


def _simulate(
    case: EncoderCase, settings: PropagationSettings, context: Context, bar: Any
) -> tuple[str, list[int], dict[str, np.ndarray]]:
    """Sampler used, kept layers, and quantity -> (kept layers, n_networks) float64."""
    import torch

    from sigprop.instruments.propagation import measure
    from sigprop.models.encoder import EncoderConfig, make_sampler, stream
    from sigprop.models.samplers import choose_sampler
    from sigprop.tasks.tokens import gaussian_tokens

    config = EncoderConfig(**case.shape())
    variant = case.scheme.attention
    sampler_name = choose_sampler(case.sampler, case.n_tokens, case.d_model, case.weights, variant)
    dtype = getattr(torch, settings.dtype)
    generator = torch.Generator(device=context.device)
    generator.manual_seed(torch_seed(seed_stream(context.seed, context.table, case.key)))
    sampler = make_sampler(config, generator, sampler_name, variant=variant)
    layers = settings.layers(case.depth)
    keep = set(layers)
    entropy = "attention_entropy" in settings.quantities and case.attention == "softmax"

    width = max(case.d_model, case.d_ff, case.n_tokens * case.n_heads)
    batch = max(1, _BATCH_BYTES // (case.n_tokens * width * dtype.itemsize))
    draw = partial(gaussian_tokens, n_tokens=case.n_tokens, d_model=case.d_model, rho=case.rho)
    fixed = None
    if settings.fixed_input:
        # Named by the input alone, so that all cases of the sweep start from the same tokens.
        shape = f"n{case.n_tokens}|d{case.d_model}|rho{case.rho!r}"
        own = torch.Generator(device=context.device)
        own.manual_seed(torch_seed(seed_stream(context.seed, context.table, "input", shape)))
        fixed = draw(1, sigma_x=case.sigma_x, generator=own, dtype=dtype)
    batches: list[dict[str, np.ndarray]] = []
    for start in range(0, case.n_networks, batch):
        size = min(batch, case.n_networks - start)
        x = (
            draw(size, sigma_x=case.sigma_x, generator=generator, dtype=dtype)
            if fixed is None
            else fixed.expand(size, -1, -1)
        )
        measured: dict[str, list[np.ndarray]] = {}
        for state in stream(x, config, case.scheme, sampler, keep_attention=entropy):
            if state.layer in keep:
                for quantity, value in measure(state.x, state.attention).items():
                    measured.setdefault(quantity, []).append(value.cpu().numpy())
            if state.layer:
                bar.update(size)
        batches.append({quantity: np.stack(rows) for quantity, rows in measured.items()})
    return (
        sampler_name,
        layers,
        {quantity: np.concatenate([b[quantity] for b in batches], 1) for quantity in batches[0]},
    )
