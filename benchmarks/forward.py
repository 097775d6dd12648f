"""Speed of forward simulation, side by side in one run: draws in law, explicit weights, plain loop.

    python benchmarks/forward.py               ratios and shares of time at n = 32
    python benchmarks/forward.py --wide        8 networks of width 65,536 and depth 100
    python benchmarks/forward.py --crossover   explicit / law against tokens per width

One thread, float32, one head, ReLU, softmax attention, no LN, strengths 1/sqrt(L). Repeats are
interleaved and ratios are medians over repeats, because the speed of a shared machine drifts. Times
are CPU times of this one thread, per network and layer.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial

import torch
from timing import (
    Times,
    draw_input,
    interleaved,
    report_crossover,
    report_one,
    report_ratios,
    report_shares,
)
from torch import Tensor

from sigprop.models.encoder import EncoderConfig, make_sampler, stream
from sigprop.models.schemes import SCHEMES

SCHEME = SCHEMES["no_ln_scaled"]
TARGETS = {256: 6, 1024: 30, 4096: 100}  # explicit / law
# Layers per timed run drawn in law: the way into coordinates is paid once per network, not per
# layer. Explicit weights cost the same in every layer, so one is enough.
LAW_LAYERS = 4
KINDS = {
    "random numbers": ("normal_", "uniform_", "_standard_gamma"),
    "factorization": ("geqrf", "triu", "linalg_qr"),
    "matrix products": ("bmm", "mm", "addmm", "baddbmm"),
    "softmax": ("_softmax",),
}


def forward(x: Tensor, depth: int, sampler: str, seed: int) -> None:
    """The package: all networks at once, layer by layer."""
    config = EncoderConfig(x.shape[1], x.shape[2], depth)
    generator = torch.Generator().manual_seed(seed)
    for _ in stream(x, config, SCHEME, make_sampler(config, generator, sampler)):
        pass


@torch.inference_mode()
def plain_loop(x: Tensor, depth: int, seed: int) -> None:
    """The ordinary way: one network after the other, torch.randn for every matrix."""
    d = x.shape[-1]
    generator = torch.Generator().manual_seed(seed)

    def weight(variance: float) -> Tensor:
        return torch.randn(d, d, generator=generator) * math.sqrt(variance)

    alpha = depth**-0.5
    for z in x:
        for _ in range(depth):
            q, k, v = z @ weight(1 / d), z @ weight(1 / d), z @ weight(1 / d)
            z = z + alpha * torch.softmax(q @ k.T / math.sqrt(d), dim=-1) @ v
            z = z + alpha * torch.relu(z @ weight(1 / d)) @ weight(2 / d)


def compare(n_tokens: int, d_model: int, repeats: int) -> Times:
    """Time per network and layer of each way, one list entry per interleaved repeat."""
    many = max(4, min(64, 2**15 // d_model))  # networks drawn in law
    few = max(1, min(16, 2**21 // d_model**2))  # networks with explicit weights
    x = draw_input(many, n_tokens, d_model, 0)
    # Law is short: several runs, so that all three span a similar time.
    runs = max(1, round(few * 5 * d_model / (3 * n_tokens) / LAW_LAYERS / many))

    def law(seed: int) -> None:
        for _ in range(runs):
            forward(x, LAW_LAYERS, "law", seed)

    return interleaved(
        {
            "law": (runs * many * LAW_LAYERS, law),
            "explicit": (few, lambda seed: forward(x[:few], 1, "explicit", seed)),
            "plain": (few, lambda seed: plain_loop(x[:few], 1, seed)),
        },
        repeats,
    )


def layers(n_tokens: int, d_model: int, sampler: str) -> Callable[[], None]:
    """What `report_shares` looks into."""
    law = sampler == "law"
    x = draw_input(max(4, min(64, 2**15 // d_model)) if law else 2, n_tokens, d_model, 1)
    return lambda: forward(x, LAW_LAYERS if law else 1, sampler, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of forward simulation on one thread.")
    parser.add_argument("--n-tokens", type=int, default=32)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--wide", action="store_true", help="time 8 networks of width 65,536")
    parser.add_argument("--crossover", action="store_true", help="where explicit weights win")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.wide:
        report_one(draw_input(8, 32, 65_536, 0), 100, forward, "below 120 s")
    elif options.crossover:
        report_crossover(lambda x, sampler, seed: forward(x, 1, sampler, seed))
    else:
        n, repeats = options.n_tokens, options.repeats
        print(f"n = {n}, {repeats} interleaved repeats, ms per network and layer (medians)")
        times_at = {d: partial(compare, n, d, repeats) for d in options.widths}
        report_ratios(times_at, (("explicit", "law"), ("plain", "explicit")), TARGETS)
        report_shares(options.widths, KINDS, partial(layers, n))


if __name__ == "__main__":
    main()
