"""Exact Jacobian norms of random softmax attention layers, one random layer per network."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import stream as seed_stream
from sigprop.artifacts.seeds import torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.jacobian_schema import FACTORS, SCHEMA
from sigprop.experiments.jacobian_settings import Case, JacobianSettings

Settings = JacobianSettings
__all__ = ["SCHEMA", "Settings", "run"]

# Float64 numbers that one batch of layers may hold in its largest array; fixed, so that the split
# into batches (and every random number) is the same on every machine.
_BATCH_NUMBERS = 2**20


def run(settings: JacobianSettings, context: Context) -> pd.DataFrame:
    """Simulate every cell; one row per network and quantity.

    Queries and keys have entry variance 1/d_k, values 1/d_v (Noci et al. 2022, section 3). For a
    fixed input, the sums over it that Lemma 3.1 needs are stored once, with a null seed.
    """
    return simulate(settings, context, _known_tau)


def _known_tau(case: Case) -> float:
    if case.tau == 0:
        raise ValueError("tau=balance belongs to the table `balance`; give a number here")
    return case.tau


def simulate(
    settings: JacobianSettings, context: Context, tau_of: Callable[[Case], float]
) -> pd.DataFrame:
    """`run`, with the temperature of each cell given by `tau_of`."""
    cases = list(settings.cases())
    frames: list[pd.DataFrame] = []
    with progress(sum(case.n_networks for case in cases), context.table, "layer") as bar:
        for case in cases:
            case = replace(case, tau=tau_of(case))
            norms, statistics = _layers(case, context)
            for family, value in norms.items():
                seed = np.arange(case.n_networks)
                frames.append(_frame(case, f"jacobian_{family}", value, seed))
            frames += [_frame(case, name, [value], None) for name, value in statistics.items()]
            bar.update(case.n_networks)
    return pd.concat(frames, ignore_index=True)


def _frame(case: Case, quantity: str, value: Any, seed: Any) -> pd.DataFrame:
    frame = pd.DataFrame({"value": np.asarray(value, dtype=np.float64)})
    frame = frame.assign(**case.factors(), quantity=quantity, source="simulation")
    frame["seed"] = pd.array([pd.NA] * len(frame) if seed is None else seed, dtype="Int64")
    return frame[[*FACTORS, "seed", "quantity", "value", "source"]]


def _layers(case: Case, context: Context) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Family -> squared Jacobian norm of each layer, and the sums over a fixed input."""
    import torch

    from sigprop.instruments.jacobian import attention_jacobian_norms
    from sigprop.instruments.tokens import token_sums
    from sigprop.tasks.tokens import gaussian_tokens

    generator = torch.Generator(device=context.device)
    generator.manual_seed(torch_seed(seed_stream(context.seed, context.table, case.key)))

    def tokens(count: int) -> Any:
        return gaussian_tokens(
            count,
            case.n_tokens,
            case.d_model,
            sigma_x=case.sigma_x,
            rho=case.rho,
            generator=generator,
            dtype=torch.float64,
        )

    def weights(count: int, width: int) -> Any:
        shape = (count, case.d_model, width)
        draw = torch.randn(shape, generator=generator, device=context.device)
        return draw.double() / math.sqrt(width)

    largest = max(case.n_tokens, case.d_model) * max(case.n_tokens, case.d_k, case.d_v)
    batch = max(1, _BATCH_NUMBERS // largest)
    fixed = tokens(1) if case.fixed_input else None
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, case.n_networks, batch):
        count = min(batch, case.n_networks - start)
        norms = attention_jacobian_norms(
            tokens(count) if fixed is None else fixed,
            weights(count, case.d_k),
            weights(count, case.d_k),
            weights(count, case.d_v),
            tau=case.tau,
            attention=case.attention,
            which=case.families,
        )
        parts.append({family: norm.cpu().numpy() for family, norm in norms.items()})
    sums = {} if fixed is None else {name: float(v) for name, v in token_sums(fixed).items()}
    return {family: np.concatenate([p[family] for p in parts]) for family in parts[0]}, sums
