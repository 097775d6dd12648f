"""Made-up tables for the claims on training: where each holds, and where it does not."""

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]
SEEDS, DEPTH = 8, 5
RATES = {0.0: 1.5, 0.5: 2.5, 0.9: 4.0, 0.99: 6.0}  # ln(rate Q / rate V)


def _block(alpha: float, r: float, quantity: str, step: int, values: np.ndarray) -> pd.DataFrame:
    """Rows of one quantity, values (seeds,) or (seeds, layers)."""
    by_layer = values.ndim == 2
    seed, layer = (
        i.reshape(-1) for i in np.indices(values.shape if by_layer else (len(values), 1))
    )
    return pd.DataFrame(
        {
            "scheme": "post_ln",
            "alpha_rule": "1" if alpha == 1 else r"1/\sqrt{L}",
            "alpha_attn": alpha,
            "depth": DEPTH,
            "r": r,
            "step": step,
            "layer": pd.array(layer if by_layer else [pd.NA] * len(seed), dtype="Int64"),
            "seed": seed,
            "quantity": quantity,
            "value": values.reshape(-1),
            "source": "simulation",
        }
    )


def reversal(
    *,
    scaled_times: dict[float, float] | None = None,
    near_time: float = np.inf,
    near_loss: float = 2.30,
    slope: float = -1.0,
    rates: dict[float, float] | None = None,
    key_rate: float = 0.0,
    seeds: int = SEEDS,
) -> Tables:
    """Both tables: times until solved, losses, gradients at step 0 and Adam's rates at step 100.

    `slope` is that of ln(grad Q / grad V) in the input's mean cosine; `key_rate` is added to keys.
    """
    rng = np.random.default_rng(5)
    scaled_times = scaled_times or {0.0: 200.0, 0.9: 500.0, 0.999: np.inf}
    unscaled = {0.0: 700.0, 0.5: 900.0, 0.9: np.inf, 0.99: near_time}
    frames: Tables = {}
    for table, alpha, times in (
        ("reversal_unscaled", 1.0, unscaled),
        ("reversal_scaled", DEPTH**-0.5, scaled_times),
    ):
        blocks = []
        for r, time in times.items():
            steps = np.full(seeds, time) * (1 + 0.05 * rng.standard_normal(seeds))
            solved = steps < 1200
            loss = np.where(solved, 0.01, near_loss) + 0.001 * rng.random(seeds)
            for quantity, step, values in (
                ("steps_to_solve", 1200, np.where(solved, steps, 1200.0)),
                ("solved", 1200, solved.astype(float)),
                ("loss", 0, np.full(seeds, 2.6)),
                ("loss", 1200, loss),
            ):
                blocks.append(_block(alpha, r, quantity, step, values))
            cosine = 0.3 + 0.69 * r + 0.01 * rng.standard_normal(seeds)
            blocks.append(_block(alpha, r, "cos_mean", 0, np.repeat(cosine[:, None], 6, axis=1)))
            ratio = np.exp(10 * slope * cosine + 0.1 * rng.standard_normal(seeds))
            blocks.append(_block(alpha, r, "grad_v", 0, np.ones((seeds, DEPTH))))
            blocks.append(_block(alpha, r, "grad_q", 0, np.repeat(ratio[:, None], DEPTH, axis=1)))
            rate = (rates or RATES).get(r, 5.0) + 0.2 * rng.standard_normal((seeds, DEPTH))
            blocks.append(_block(alpha, r, "log_rate_v", 100, np.zeros((seeds, DEPTH))))
            blocks.append(_block(alpha, r, "log_rate_q", 100, rate))
            blocks.append(_block(alpha, r, "log_rate_k", 100, rate + key_rate))
        frames[table] = pd.concat(blocks, ignore_index=True)
    return frames


HOLDS = {"N26": lambda _: reversal(), "N27": lambda _: reversal(), "N28": lambda _: reversal()}
FAILS = {
    "N26 aligned is faster": lambda _: reversal(
        scaled_times={0.0: np.inf, 0.9: 500.0, 0.999: 200.0}
    ),
    "N26 near learns": lambda _: reversal(near_loss=2.0),
    "N27 rises": lambda _: reversal(slope=1.0),
    "N28 values are faster": lambda _: reversal(rates=dict.fromkeys(RATES, -1.0)),
    "N28 keys are slower": lambda _: reversal(key_rate=-8.0),
    "N28 no growth": lambda _: reversal(rates=RATES | {0.0: 5.0}),
}
