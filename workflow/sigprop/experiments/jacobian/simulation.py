"""Exact Jacobian norms of random softmax attention layers, one random layer per network."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.jacobian.settings import Cell, JacobianSettings

# Float64 numbers that one batch of layers may hold in its largest array; fixed, so that the split
# into batches (and every random number) is the same on every machine.
_BATCH_NUMBERS = 2**20


def run(settings: JacobianSettings, context: Context) -> pd.DataFrame:
    """Simulate every cell; one row per network and quantity.

    Queries and keys have entry variance 1/d_k, values 1/d_v (Noci et al. 2022, section 3). For a
    fixed input, the sums over it that Lemma 3.1 needs are stored once, with a null seed. The
    temperatures of `tau: balance` come from the design.
    """
    cells = list(settings.cells())
    balanced = context.designed(settings) or [cell.tau for cell in cells]
    frames: list[pd.DataFrame] = []
    with progress(sum(cell.n_networks for cell in cells), context.table, "layer") as bar:
        for cell, tau in zip(cells, balanced, strict=True):
            cell = replace(cell, tau=tau)
            norms, sums = _layers(cell, context)
            frames += [
                tidy(
                    JacobianSettings,
                    cell.factors(),
                    seed=np.arange(cell.n_networks),
                    quantity=f"jacobian_{family}",
                    value=value,
                    source="simulation",
                )
                for family, value in norms.items()
            ]
            frames += [
                tidy(
                    JacobianSettings,
                    cell.factors(),
                    quantity=name,
                    value=[value],
                    source="simulation",
                )
                for name, value in sums.items()
            ]
            bar.update(cell.n_networks)
    return pd.concat(frames, ignore_index=True)


def _layers(cell: Cell, context: Context) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Family -> squared Jacobian norm of each layer, and the sums over a fixed input."""
    import torch

    from sigprop.instruments.jacobian import attention_jacobian_norms
    from sigprop.instruments.tokens import token_sums
    from sigprop.tasks.tokens import gaussian_tokens

    generator = torch.Generator(device=context.device)
    generator.manual_seed(torch_seed(seed_stream(context.seed, context.table, cell.key)))

    def tokens(count: int) -> Any:
        return gaussian_tokens(
            count,
            cell.n_tokens,
            cell.d_model,
            sigma_x=cell.sigma_x,
            rho=cell.rho,
            generator=generator,
            dtype=torch.float64,
        )

    def weights(count: int, width: int) -> Any:
        shape = (count, cell.d_model, width)
        draw = torch.randn(shape, generator=generator, device=context.device)
        return draw.double() / math.sqrt(width)

    largest = max(cell.n_tokens, cell.d_model) * max(cell.n_tokens, cell.d_k, cell.d_v)
    batch = max(1, _BATCH_NUMBERS // largest)
    fixed = tokens(1) if cell.fixed_input else None
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, cell.n_networks, batch):
        count = min(batch, cell.n_networks - start)
        norms = attention_jacobian_norms(
            tokens(count) if fixed is None else fixed,
            weights(count, cell.d_k),
            weights(count, cell.d_k),
            weights(count, cell.d_v),
            tau=cell.tau,
            attention=cell.attention,
            which=cell.families,
        )
        parts.append({family: norm.cpu().numpy() for family, norm in norms.items()})
    sums = {} if fixed is None else {name: float(v) for name, v in token_sums(fixed).items()}
    return {family: np.concatenate([p[family] for p in parts]) for family in parts[0]}, sums
