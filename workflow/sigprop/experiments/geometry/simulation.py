"""Token geometry of random networks, forward and backward: moments and distributions by layer."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.geometry.settings import GeometrySettings, NetworkBatch

# Numbers in the stream of the networks that run at a time, forward; and bytes that they may keep
# from the forward to the backward pass. Fixed, so that every random number is the same on every
# machine.
_FORWARD_NUMBERS = 2**19
_SAVED_BYTES = 2**28


def run(settings: GeometrySettings, context: Context) -> pd.DataFrame:
    """Simulate every setting; one row per network, kept layer and quantity.

    Tokens start as an exact simplex (`tasks.tokens.simplex_tokens`), anew for each network. All
    settings of a batch run together, each with networks of its own or, on request, with the same.

    Raises:
        FloatingPointError: activations or gradients overflowed; the message says what to do.
    """
    batches = list(settings.batches())
    starts = context.designed(settings) or [np.full(len(b.points), b.q) for b in batches]
    total = sum(len(batch.points) * batch.n_networks for batch in batches)
    frames: list[pd.DataFrame] = []
    with progress(total, context.table, "network") as bar:
        for batch, q in zip(batches, starts, strict=True):
            frames += _frames(batch, q, context, bar)
    return pd.concat(frames, ignore_index=True)


def _frames(
    batch: NetworkBatch, q: np.ndarray, context: Context, bar: Any
) -> Iterator[pd.DataFrame]:
    sampler, values = _simulate(batch, q, context, bar)
    own = batch.columns() | {"q0": q}
    own["rho0"] = own.pop("rho")
    for quantity in batch.quantities:
        value = values[quantity]  # (layers, points * networks) or (.., items)
        value = value.reshape(len(batch.layers), len(batch.points), batch.n_networks, -1)
        layer, point, network, item = (index.reshape(-1) for index in np.indices(value.shape))
        columns = {name: column[point] for name, column in own.items()} | batch.factors()
        columns |= {"layer": np.array(batch.layers)[layer], "item": item, "sampler": sampler}
        yield tidy(
            GeometrySettings,
            columns,
            seed=network,
            quantity=quantity,
            value=value.reshape(-1),
            source="simulation",
        )


def _simulate(
    batch: NetworkBatch, q: np.ndarray, context: Context, bar: Any
) -> tuple[str, dict[str, np.ndarray]]:
    """Sampler used, and quantity -> (layers, points * networks) or (.., items), float64."""
    import torch

    from sigprop.models.samplers import choose_sampler

    generator = torch.Generator(device=context.device)
    columns = batch.columns() | {"q": q}
    if batch.shared_weights:
        return "explicit", _shared_weights(batch, columns, context, generator, bar)
    sampler = choose_sampler(batch.sampler, batch.n_tokens, batch.d_model)
    return sampler, _own_weights(batch, columns, sampler, context, generator, bar)


def _own_weights(
    batch: NetworkBatch,
    columns: dict[str, np.ndarray],
    sampler: str,
    context: Context,
    generator: Any,
    bar: Any,
) -> dict[str, np.ndarray]:
    """One long batch, the networks of a point together."""
    generator.manual_seed(torch_seed(seed_stream(context.seed, context.table, batch.key)))
    each = {name: np.repeat(column, batch.n_networks) for name, column in columns.items()}
    return _join(_measure(batch, part, sampler, generator, bar) for part in _split(each, batch))


def _shared_weights(
    batch: NetworkBatch, columns: dict[str, np.ndarray], context: Context, generator: Any, bar: Any
) -> dict[str, np.ndarray]:
    """One network after the other, its points as sequences that pass through the same draws."""
    networks = []
    for k in range(batch.n_networks):
        stream = seed_stream(context.seed, context.table, batch.key, f"network{k}")
        parts = []
        for part in _split(columns, batch):
            generator.manual_seed(torch_seed(stream))
            parts.append(_measure(batch, part, "explicit", generator, bar))
        networks.append(_join(parts))
    values = {}
    for name in networks[0]:
        stacked = np.stack([network[name] for network in networks], 2)  # (layers, points, B, ..)
        values[name] = stacked.reshape(len(stacked), -1, *stacked.shape[3:])
    return values


def _join(parts: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    parts = list(parts)
    return {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}


def _split(columns: dict[str, np.ndarray], batch: NetworkBatch) -> Iterator[dict[str, np.ndarray]]:
    """As many rows at a time as fit into memory together."""
    size = _networks_at_once(batch)
    for start in range(0, len(columns["q"]), size):
        yield {name: column[start : start + size] for name, column in columns.items()}


def _measure(
    batch: NetworkBatch, columns: dict[str, np.ndarray], sampler: str, generator: Any, bar: Any
) -> dict[str, np.ndarray]:
    """Quantity -> (layers, rows) or (layers, rows, items) for networks with these parameters."""
    import torch

    from sigprop.models.cowsik import cowsik_gains
    from sigprop.models.encoder import EncoderConfig
    from sigprop.tasks.tokens import simplex_tokens

    config = EncoderConfig(batch.n_tokens, batch.d_model, batch.depth, activation=batch.activation)
    scheme = batch.scheme  # but for strengths and gains, which differ by network
    count, dtype = len(columns["q"]), getattr(torch, batch.dtype)
    p = {name: torch.tensor(column, device=generator.device) for name, column in columns.items()}
    draw = {"generator": generator, "dtype": dtype}
    shape = (1 if batch.shared_weights else count, batch.n_tokens, batch.d_model)
    x = simplex_tokens(*shape, q=p["q"], rho=p["rho"], **draw)
    x = x[None] if batch.shared_weights else x  # (1, points, n, d) or (networks, n, d)
    p = {name: column.to(dtype)[:, None, None] for name, column in p.items()}
    options = {
        "strengths": {"attention": p["alpha_attn"], "feed_forward": p["alpha_ff"]},
        "gains": cowsik_gains(p["sigma_a"], p["sigma_v"], p["sigma_w1"], p["sigma_w2"]),
    }
    if batch.readout == "none":
        found = _forward(batch, x, config, scheme, sampler, generator, options)
    else:
        found = _backward(batch, x, config, scheme, sampler, generator, options)
    bar.update(count)
    values = {name: found[name].cpu().numpy() for name in batch.quantities}
    # (layers, networks[, points][, items]) -> (layers, rows[, items])
    return {
        name: value.reshape(len(value), count, *value.shape[x.ndim - 1 :])
        for name, value in values.items()
    }


def _forward(
    batch: NetworkBatch,
    x: Any,
    config: Any,
    scheme: Any,
    sampler: str,
    generator: Any,
    options: dict[str, Any],
) -> dict[str, Any]:
    import torch

    from sigprop.instruments.geometry import pair_cosines, token_moments, token_norms
    from sigprop.models.encoder import make_sampler, stream

    draws = make_sampler(config, generator, sampler)
    found: dict[str, list[Any]] = {quantity: [] for quantity in batch.quantities}
    for state in stream(x, config, scheme, draws, **options):
        if state.layer in batch.layers:
            at = token_moments(state.x, batch.d_model)
            if "token_norm" in found:
                at["token_norm"] = token_norms(state.x, batch.d_model)
            if "pair_cosine" in found:
                at["pair_cosine"] = pair_cosines(state.x)
            for quantity, values in found.items():
                values.append(at[quantity])
    return {quantity: torch.stack(values) for quantity, values in found.items()}


def _backward(
    batch: NetworkBatch,
    x: Any,
    config: Any,
    scheme: Any,
    sampler: str,
    generator: Any,
    options: dict[str, Any],
) -> dict[str, Any]:
    import torch

    from sigprop.instruments.geometry import gradient_trajectory
    from sigprop.models.gradients import LawGradients
    from sigprop.models.samplers import ExplicitSampler

    n_tokens = batch.n_tokens if batch.readout == "independent" else 1
    shape = (len(x), *(1 for _ in x.shape[1:-2]), n_tokens, batch.d_model)
    readout = torch.empty(shape, dtype=x.dtype, device=x.device).normal_(generator=generator)
    draws = LawGradients(generator) if sampler == "law" else ExplicitSampler(generator)
    return gradient_trajectory(x, config, scheme, draws, readout, layers=batch.layers, **options)


def _networks_at_once(batch: NetworkBatch) -> int:
    n, d = batch.n_tokens, batch.d_model
    if batch.readout == "none":
        return max(1, _FORWARD_NUMBERS // (n * d))
    saved = n * (20 * d + 5 * n) * batch.depth * (8 if batch.dtype == "float64" else 4)
    return max(1, _SAVED_BYTES // saved)
