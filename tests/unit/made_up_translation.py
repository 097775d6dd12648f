"""Made-up tables for the claims on translation: where each holds, and where it does not."""

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]
DEPTHS = (2, 6, 12)
UNSCALED = {2: 0.4, 6: 0.7, 12: 0.9}
BRANCHES = (
    "encoder_attention",
    "encoder_feed_forward",
    "decoder_attention",
    "decoder_cross_attention",
    "decoder_feed_forward",
)


def _block(
    quantity: str,
    step: int,
    values: np.ndarray,
    depth: int,
    rule: str,
    alpha: float,
    name: str = "translation_init",
) -> pd.DataFrame:
    """Rows of one quantity, values (seeds,) or (seeds, layers)."""
    by_layer = values.ndim == 2
    wide = values if by_layer else values[:, None]
    seed, layer = (i.reshape(-1) for i in np.indices(wide.shape))
    return pd.DataFrame(
        {
            "scheme": "residual_scaling" if name == "translation_ours" else "post_ln_xavier",
            "optimizer": "adam" if name.endswith("adam") else "sgd",
            "tau_final": 8.5 if name == "translation_ours" else 1.0,
            "alpha_rule": rule,
            "alpha_init": alpha,
            "d_model": 128,
            "depth": depth,
            "corpus": "embedded",
            "step": step,
            "layer": pd.array(layer if by_layer else [pd.NA] * len(seed), dtype="Int64"),
            "seed": seed,
            "quantity": quantity,
            "value": wide.reshape(-1),
            "source": "simulation",
        }
    )


def initial(
    unscaled: dict[int, float] | None = None,
    scaled: dict[int, float] | None = None,
    seeds: int = 8,
    noise: float = 0.01,
) -> Tables:
    """cos_mean at step 0, rising linearly over layers from 0.2 to the given value."""
    rng = np.random.default_rng(3)
    blocks = []
    for rule, ends in (("1", unscaled or UNSCALED), (r"1/\sqrt{L}", scaled or {})):
        for depth in DEPTHS:
            end = ends.get(depth, 0.3) + noise * rng.standard_normal((seeds, 1))
            line = np.linspace(0.2, end[:, 0], depth + 1, axis=1)
            alpha = 1.0 if rule == "1" else depth**-0.5
            blocks.append(_block("cos_mean", 0, line, depth, rule, alpha))
    return {"translation_init": pd.concat(blocks, ignore_index=True)}


def trained(
    *,
    loss: tuple[float, float, float] = (4.0, 5.5, 3.8),
    bleu: tuple[float, float, float] = (34.6, 25.0, 34.9),
    full: bool = False,
    growth: float = 0.2,
    cosine: float = 0.05,
    diverged: float = 0.0,
    seeds: int | None = None,
) -> Tables:
    """Ours, plain SGD and POST-LN Adam: validation loss, BLEU, strengths and correlation.

    `growth` and `cosine` are what ours gains from step 0 to 100; `diverged` of its runs did.
    """
    rng = np.random.default_rng(4)
    n, depth = seeds or (5 if full else 3), 3
    frames: Tables = {}
    names = ("translation_ours", "translation_post_ln_sgd", "translation_post_ln_adam")
    for name, end, score in zip(names, loss, bleu, strict=True):
        rule, alpha = (r"1/\sqrt{L}", depth**-0.5) if name == names[0] else ("1", 1.0)

        def noisy(value: float, *shape: int, size: float = 0.02) -> np.ndarray:
            return value + size * rng.standard_normal((n, *shape))

        gone = np.arange(n) < (diverged if name == names[0] else 0)
        rows = [
            ("valid_loss", 0, noisy(7.3)),
            ("valid_loss", 50, noisy(end)),
            ("valid_loss", 100, noisy(end + 0.1)),
            ("bleu_tokenized", 50, noisy(score, size=0.2)),
            ("diverged", 100, gone.astype(float)),
            ("cos_mean", 0, noisy(0.3, depth + 1)),
            ("cos_mean", 100, noisy(0.3 + cosine, depth + 1)),
        ]
        for branch in BRANCHES if name == names[0] else ():
            rows.append((f"alpha_{branch}", 0, np.full((n, depth), alpha)))
            rows.append((f"alpha_{branch}", 100, noisy(alpha + growth, depth)))
        blocks = [_block(*row, depth, rule, alpha, name) for row in rows]
        table = pd.concat(blocks, ignore_index=True)
        if full:
            table = table.assign(corpus="iwslt14", d_model=512)
        frames[name] = table
    return frames


HOLDS = {"N29": lambda _: initial(), "N30": lambda _: trained(), "N31": lambda _: trained()}
FAILS = {
    "N29 falls with depth": lambda _: initial(unscaled={2: 0.9, 6: 0.7, 12: 0.4}),
    "N29 scaled rises": lambda _: initial(scaled={2: 0.3, 6: 0.5, 12: 0.7}),
    "N30 plain SGD is better": lambda _: trained(loss=(5.5, 4.0, 3.8)),
    "N30 far from Adam": lambda _: trained(loss=(5.4, 5.5, 3.8)),
    "N30 full, plain SGD is as good": lambda _: trained(full=True, bleu=(34.6, 33.0, 34.9)),
    "N30 full, far from Adam": lambda _: trained(full=True, bleu=(31.0, 20.0, 34.9)),
    "N31 strengths fall": lambda _: trained(growth=-0.2),
    "N31 correlation rises": lambda _: trained(cosine=0.4),
    "N31 diverged": lambda _: trained(diverged=1),
}
