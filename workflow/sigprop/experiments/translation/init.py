"""Correlation of an encoder's tokens at initialization, on sentences of the validation text.

Step 0 of Noci et al. 2022, arXiv 2206.03126, Figure 1. The encoders are those of `translation`;
nothing is trained.
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.translation.settings import TranslationInitSettings
from sigprop.experiments.translation.simulation import corpora_of, frame


def run(settings: TranslationInitSettings, context: Context) -> pd.DataFrame:
    """cos_mean and token_norm by layer at step 0, one row per network, quantity and layer.

    Raises UserError: text that cannot be prepared.
    """
    import torch

    from sigprop.experiments.translation.model import (
        build,
        prepared,
        probe_batch,
        run_seed,
        token_statistics,
    )

    with tempfile.TemporaryDirectory(prefix="sigprop-") as temporary:
        folder = Path(context.checkpoints or Path(temporary) / context.table)
        data = prepared(settings, settings.cache or corpora_of(folder))
    source, real = probe_batch(data, settings.probe_sentences, context.device)
    frames = []
    for case, seed in itertools.product(settings.cases(), range(settings.n_seeds)):
        weights = torch.Generator().manual_seed(
            run_seed(context.seed, seed, f"weights L{case.depth}")
        )
        network = build(settings, data, case, weights).to(context.device).eval()
        states: list[torch.Tensor] = []
        with torch.no_grad():
            network.encode(source, states=states)
        factors = case.factors() | {
            "optimizer": "none",
            "tau_final": case.scheme.tau,
            "d_model": settings.d_model,
            "corpus": data.record["source"],
        }
        for quantity, value in token_statistics(states, real).items():
            values = value[None].cpu().numpy()
            frames.append(frame(factors, seed, quantity, np.zeros(1), values))
    return pd.concat(frames, ignore_index=True)
