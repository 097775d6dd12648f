"""Monte Carlo of random softmax attention at equally correlated tokens (Cowsik et al. 2024)."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sigprop.artifacts.progress import progress
from sigprop.artifacts.seeds import seed_stream
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.softmax_rows.settings import Rows, SoftmaxRowsSettings

Array = NDArray[np.float64]

# Random numbers drawn at a time. Fixed, so that every value is the same on every machine.
_NUMBERS = 2**20


def run(settings: SoftmaxRowsSettings, context: Context) -> pd.DataFrame:
    """Means over batches of independent attention matrices, one row per setting and batch.

    The settings of one grid, n_tokens and d_k use the same random numbers, so that curves over
    sigma_a and rho are smooth; their batches are independent of each other all the same.
    """
    cases = list(settings.cases())
    frames = []
    with progress(sum(case.n_batches for case in cases), context.table, "batch") as bar:
        for case in cases:
            found = _batches(case, context, bar)
            for i in range(len(case.points)):
                batch, quantity = (index.ravel() for index in np.indices(found[:, i].shape))
                frames.append(
                    tidy(
                        SoftmaxRowsSettings,
                        case.factors(i),
                        seed=batch,
                        quantity=np.array(_MEASURED)[quantity],
                        value=found[:, i].ravel(),
                        source="simulation",
                    )
                )
    return pd.concat(frames, ignore_index=True)


_MEASURED = ("s", "r", "a3", "tq", "tr", "entropy")


def _batches(case: Rows, context: Context, bar: Any) -> Array:
    """(batches, points, quantities)."""
    rng = np.random.default_rng(seed_stream(context.seed, context.table, case.key))
    k, n = case.n_rows, case.n_tokens
    numbers = (k + n) * case.d_k if case.d_k else k * n
    at_once = max(1, _NUMBERS // numbers)
    out = np.zeros((case.n_batches, len(case.points), len(_MEASURED)))
    for batch in range(case.n_batches):
        for start in range(0, case.batch_size, at_once):
            count = min(at_once, case.batch_size - start)
            if case.d_k:
                queries = rng.standard_normal((count, k, case.d_k))
                keys = rng.standard_normal((count, n, case.d_k))
                z = queries @ keys.swapaxes(1, 2) / case.d_k**0.5  # (b, k, n)
            else:
                z = rng.standard_normal((count, k, n))
            for i, (sigma_a, rho, _) in enumerate(case.points):
                logits = attention_logits(z, sigma_a, rho)
                out[batch, i] += row_statistics(logits).sum(0) / case.batch_size
        bar.update(1)
    return out


def attention_logits(z: Array, sigma_a: float, rho: float) -> Array:
    """Logits of k of n tokens with Gram matrix C_ij = rho + (1 - rho) delta_ij, (b, k, n).

    `z` (b, k, n) are the logits of orthonormal tokens: iid N(0, 1), or q_i.k_j / sqrt(d_k) of a
    layer with iid normal queries and keys. With X = C^(1/2) F and orthonormal rows of F,

        a = sigma_A C^(1/2) z C^(1/2),     Cov(a_ij, a_kl) = sigma_A^2 C_ik C_jl  for normal z;

    on the left C is that of the k tokens alone, which has the same law.
    """
    return sigma_a * _correlate(_correlate(z, rho).swapaxes(1, 2), rho).swapaxes(1, 2)


def _correlate(z: Array, rho: float) -> Array:
    """C^(1/2) z along axis 1: eigenvalues 1 - rho, and 1 + (m - 1) rho for the mean of m."""
    m = z.shape[1]
    own, mean = np.sqrt(1.0 - rho), np.sqrt(max(1.0 + (m - 1) * rho, 0.0))
    return own * z + (mean - own) * z.mean(1, keepdims=True)


def row_statistics(logits: Array) -> Array:
    """Averages over the rows, or pairs of rows, of each matrix, (b, 6) in the order of `_MEASURED`.

    With Jacobians J_i = diag A_i - A_i A_i^T: |J_i|_F^2 = sum_j A_ij^2 (1 - 2 A_ij) + (sum_j
    A_ij^2)^2, and tr J_i J_k = sum_j A_ij A_kj (1 - A_ij - A_kj) + (sum_j A_ij A_kj)^2.
    """
    shifted = logits - logits.max(2, keepdims=True)
    a = np.exp(shifted)
    z = a.sum(2, keepdims=True)
    a /= z
    squares = a**2
    k = a.shape[1]
    first, second = np.triu_indices(k, 1)
    gram = a @ a.swapaxes(1, 2)  # (b, k, k): sum_j A_ij A_kj
    mixed = squares @ a.swapaxes(1, 2)  # (b, k, k): sum_j A_ij^2 A_kj
    jacobians = gram - mixed - mixed.swapaxes(1, 2) + gram**2
    entropy = np.log(z[..., 0]) - (a * shifted).sum(2)
    diagonal = np.arange(k)
    return np.stack(
        [
            gram[:, diagonal, diagonal].mean(1),
            gram[:, first, second].mean(1),
            mixed[:, diagonal, diagonal].mean(1),
            jacobians[:, diagonal, diagonal].mean(1),
            jacobians[:, first, second].mean(1),
            entropy.mean(1),
        ],
        axis=1,
    )
