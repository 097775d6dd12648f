"""Gradients of a random linear readout through random encoders, layer by layer."""

import numpy as np
import pandas as pd

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.gradients.settings import GradientSettings
from sigprop.experiments.propagation.settings import EncoderCase

_SUMS = ("sum_sq_norm", "gram_sq_norm", "spread_sq_norm", "mean_sq_norm")


def run(settings: GradientSettings, context: Context) -> pd.DataFrame:
    """One forward and backward pass per network; one row per network, layer and quantity.

    The sums over the tokens that each attention reads are kept as well: Lemma 3.1 is evaluated at
    them.

    Raises:
        FloatingPointError: activations or gradients overflowed; the message says where.
    """
    cases = list(settings.cases())
    frames = []
    with progress(
        sum(case.n_networks * case.depth for case in cases), context.table, "layer"
    ) as bar:
        for case in cases:
            frames.append(_case_rows(case, settings, context))
            bar.update(case.n_networks * case.depth)
    return pd.concat(frames, ignore_index=True)


def _case_rows(case: EncoderCase, settings: GradientSettings, context: Context) -> pd.DataFrame:
    sampler, values = _simulate(case, settings, context)
    wanted = (*settings.quantities, *(_SUMS if case.attention == "softmax" else ()))
    factors = case.factors() | {"sampler": sampler}
    frames = []
    for quantity in wanted:
        by_layer = values[quantity]  # (layers, networks)
        layer, network = (index.reshape(-1) for index in np.indices(by_layer.shape))
        frames.append(
            tidy(
                GradientSettings,
                factors | {"layer": layer},
                seed=network,
                quantity=quantity,
                value=by_layer.reshape(-1),
                source="simulation",
            )
        )
    return pd.concat(frames, ignore_index=True)


def _simulate(
    case: EncoderCase, settings: GradientSettings, context: Context
) -> tuple[str, dict[str, np.ndarray]]:
    """Sampler used, and quantity -> (layers, n_networks) float64."""
    import torch

    from sigprop.instruments.end_to_end import gradient_norms
    from sigprop.models.encoder import EncoderConfig
    from sigprop.models.gradients import make_gradient_sampler
    from sigprop.tasks.tokens import gaussian_tokens

    config = EncoderConfig(**case.shape())
    generator = torch.Generator(device=context.device)
    generator.manual_seed(torch_seed(seed_stream(context.seed, context.table, case.key)))
    sampler = make_gradient_sampler(config, generator, case.sampler)
    x = gaussian_tokens(
        case.n_networks,
        case.n_tokens,
        case.d_model,
        sigma_x=case.sigma_x,
        rho=case.rho,
        generator=generator,
        dtype=getattr(torch, settings.dtype),
    )
    measured = gradient_norms(x, config, case.scheme, sampler, local=True)
    return sampler.name, {name: value.cpu().numpy() for name, value in measured.items()}
