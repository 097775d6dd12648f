"""Speed of forward and backward passes of random encoders, side by side in one run.

    python benchmarks/gradients.py               draws in law, explicit weights, plain autograd
    python benchmarks/gradients.py --wide        8 networks of width 16,384 and depth 48
    python benchmarks/gradients.py --deep        50 networks of width 128 and depth 200
    python benchmarks/gradients.py --crossover   explicit / law against tokens per width

One thread, float32, n = 32, one head, ReLU, softmax attention, no LN, strengths 1/sqrt(L). Every
way returns the gradient norms of all weights. Repeats are interleaved and ratios are medians over
repeats, because the speed of a shared machine drifts. Times are processor time per network and
layer; draws in law run 16 networks together, explicit weights as many as fit into memory. Per layer
draws in law need 2 n d_ff + O(n^2) random numbers (explicit weights 5 d^2); in coordinates only the
ReLU hidden layer has any of its arithmetic at full width.
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

from sigprop.instruments.end_to_end import gradient_norms
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradients import make_gradient_sampler
from sigprop.models.schemes import SCHEMES

SCHEME = SCHEMES["no_ln_scaled"]
DEPTH = 4
TARGETS = {1024: 8, 2048: 50}  # explicit / law
KINDS = {
    "random numbers": ("normal_", "_standard_gamma"),
    "factorizations": ("geqrf", "ormqr", "triu", "linalg_cholesky_ex", "linalg_solve_triangular"),
    "matrix products": ("bmm", "mm", "addmm", "baddbmm"),
}


def norms(x: Tensor, depth: int, sampler: str, seed: int) -> dict[str, Tensor]:
    """The package."""
    config = EncoderConfig(x.shape[1], x.shape[2], depth)
    generator = torch.Generator().manual_seed(seed)
    return gradient_norms(x, config, SCHEME, make_gradient_sampler(config, generator, sampler))


def plain_autograd(x: Tensor, depth: int, seed: int) -> list[list[Tensor]]:
    """The ordinary way: one network after the other, weights that require grad, loss.backward()."""
    d = x.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    alpha = depth**-0.5
    found = []
    for tokens in x:
        weights: list[Tensor] = []

        def weight(variance: float, weights: list[Tensor] = weights) -> Tensor:
            w = torch.randn(d, d, generator=generator) * math.sqrt(variance)
            weights.append(w.requires_grad_())
            return w

        z = tokens
        for _ in range(depth):
            q, k, v = z @ weight(1 / d), z @ weight(1 / d), z @ weight(1 / d)
            z = z + alpha * torch.softmax(q @ k.T / math.sqrt(d), dim=-1) @ v
            z = z + alpha * torch.relu(z @ weight(1 / d)) @ weight(2 / d)
        (torch.randn(z.shape, generator=generator) * z).sum().backward()
        found.append([w.grad.square().sum() for w in weights if w.grad is not None])
    return found


def compare(n_tokens: int, d_model: int, repeats: int) -> Times:
    """Time per network and layer of each way, one list entry per interleaved repeat."""
    few = max(1, min(16, 2**21 // d_model**2))  # networks with explicit weights
    x = draw_input(16, n_tokens, d_model, 0)
    ways = {
        "law": (len(x) * DEPTH, lambda seed: norms(x, DEPTH, "law", seed)),
        "explicit": (few * DEPTH, lambda seed: norms(x[:few], DEPTH, "explicit", seed)),
        "plain": (few * DEPTH, lambda seed: plain_autograd(x[:few], DEPTH, seed)),
    }
    return interleaved(ways, repeats)


def blocks(n_tokens: int, d_model: int, sampler: str) -> Callable[[], object]:
    """What `report_shares` looks into."""
    x = draw_input(16 if sampler == "law" else 1, n_tokens, d_model, 1)
    return lambda: norms(x, DEPTH, sampler, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of gradient norms on one thread.")
    parser.add_argument("--n-tokens", type=int, default=32)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wide", action="store_true", help="8 networks of width 16,384, depth 48")
    parser.add_argument("--deep", action="store_true", help="50 networks of width 128, depth 200")
    parser.add_argument("--crossover", action="store_true", help="where explicit weights win")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.wide:
        report_one(draw_input(8, 32, 16_384, 0), 48, norms, "below 180 s")
    elif options.deep:
        report_one(draw_input(50, 16, 128, 0), 200, norms, "below 1 GiB")
    elif options.crossover:
        report_crossover(lambda x, sampler, seed: norms(x, 2, sampler, seed))
    else:
        n, repeats = options.n_tokens, options.repeats
        print(f"n = {n}, {repeats} interleaved repeats, ms per network and layer (medians)")
        times_at = {d: partial(compare, n, d, repeats) for d in options.widths}
        report_ratios(times_at, (("explicit", "law"), ("plain", "law")), TARGETS)
        report_shares(options.widths, KINDS, partial(blocks, n))


if __name__ == "__main__":
    main()
