"""Theory alongside the token-geometry tables: moments by layer and exponents at infinite width."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.geometry.design import start_variances
from sigprop.experiments.geometry.settings import GeometrySettings, NetworkBatch
from sigprop.theory import cowsik2024 as theory
from sigprop.theory.cowsik2024_phases import lambda_a, lambda_g


def run(settings: GeometrySettings, context: Context) -> pd.DataFrame:
    """The theory of every setting, with the factors of the simulation and an empty sampler.

    q, p, q_minus_p and, with a readout, g, h at the kept layers; g counts from the readout's own
    |R_i|^2 = d. `lambda_a` and `lambda_g` belong to the collapsed fixed point and `lambda_g_traj`,
    for independent readouts, to the whole stack; their `layer` is the last one.

    Raises:
        UserError: settings that the simulation allows but the quadratures do not reach.
    """
    frames: list[pd.DataFrame] = []
    for batch in settings.batches():
        try:
            frames += _frames(batch)
        except ValueError as error:
            raise UserError(f"experiments.{context.table}.grids.{batch.grid}: {error}") from error
    return pd.concat(frames, ignore_index=True)


def architecture(batch: NetworkBatch) -> theory.Architecture:
    """The points of a batch as the theory knows them, arrays of shape (points,)."""
    p = batch.columns()
    return theory.Architecture(
        p["alpha_attn"],
        p["alpha_ff"],
        p["sigma_w1"],
        p["sigma_w2"],
        p["sigma_a"],
        p["sigma_v"],
        batch.n_tokens,
        batch.activation,
        batch.mode,
    )


def _frames(batch: NetworkBatch) -> Iterator[pd.DataFrame]:
    own = batch.columns() | {"q0": start_variances(batch)}
    own["rho0"] = own.pop("rho")
    for quantity, layers, value in _values(batch, own):
        layer, point = (index.reshape(-1) for index in np.indices(value.shape))
        columns: dict[str, Any] = {name: column[point] for name, column in own.items()}
        columns |= batch.factors() | {"sampler": "", "item": 0, "layer": np.array(layers)[layer]}
        yield tidy(GeometrySettings, columns, quantity=quantity, value=value.reshape(-1))


def _values(
    batch: NetworkBatch, own: dict[str, np.ndarray]
) -> Iterator[tuple[str, list[int], np.ndarray]]:
    """Quantity, layers and values (layers, points)."""
    model, kept, last = architecture(batch), list(batch.layers), [batch.depth]
    states = theory.trajectory(model, batch.depth, q=own["q0"], rho=own["rho0"])
    yield "q", kept, states.q[kept]
    yield "p", kept, states.p[kept]
    yield "q_minus_p", kept, (states.q * states.one_minus_rho)[kept]
    if batch.readout != "none":
        together = 1.0 if batch.readout == "common" else 0.0
        gradients = theory.gradient_trajectory(model, states, coherence=together)
        g = batch.d_model * np.exp(gradients.log_g)
        yield "g", kept, g[kept]
        yield "h", kept, (g * gradients.coherence)[kept]
        if batch.readout == "independent":
            yield "lambda_g_traj", last, gradients.log_g[:1] / batch.depth
    if batch.mode != "unit":
        for name, exponent in (("lambda_a", lambda_a), ("lambda_g", lambda_g)):
            value = exponent(model)
            if np.isfinite(value).all():  # alpha_attn = 1 has lambda_a = -inf
                yield name, last, value[None]
