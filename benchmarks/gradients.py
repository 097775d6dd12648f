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
from collections.abc import Iterable

import torch
from timing import (
    draw_input,
    elapsed,
    interleaved,
    median_ms,
    median_ratio,
    peak_gib,
    ratio,
    shares,
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


def report_ratios(n_tokens: int, widths: Iterable[int], repeats: int) -> None:
    print(f"n = {n_tokens}, {repeats} interleaved repeats, ms per network and layer (medians)")
    for d_model in widths:
        few = max(1, min(16, 2**21 // d_model**2))  # networks with explicit weights
        x = draw_input(16, n_tokens, d_model, 0)
        ways = {
            "law": (len(x) * DEPTH, lambda seed, x=x: norms(x, DEPTH, "law", seed)),
            "explicit": (
                few * DEPTH,
                lambda seed, x=x[:few]: norms(x, DEPTH, "explicit", seed),
            ),
            "plain": (few * DEPTH, lambda seed, x=x[:few]: plain_autograd(x, DEPTH, seed)),
        }
        times = interleaved(ways, repeats)
        cells = "  ".join(f"{way} {median_ms(times, way).cpu:.2f}" for way in ways)
        print(f"d {d_model}: {cells}")
        print(f"    explicit / law {ratio(times, 'explicit', 'law')}", end="")
        if target := TARGETS.get(d_model):
            met = median_ratio(times, "explicit", "law") >= target
            print(f"; target {target}: {'met' if met else 'MISSED'}", end="")
        print(f"\n    plain / law    {ratio(times, 'plain', 'law')}", flush=True)


def report_shares(n_tokens: int, widths: Iterable[int]) -> None:
    print("\nshare of CPU time  " + "  ".join([*KINDS, "rest"]))
    for d_model in widths:
        for sampler in ("law", "explicit"):
            x = draw_input(16 if sampler == "law" else 1, n_tokens, d_model, 1)
            found = shares(lambda x=x, s=sampler: norms(x, DEPTH, s, 0), KINDS)
            cells = "  ".join(f"{part:{len(kind)}.0%}" for kind, part in found.items())
            print(f"{d_model:7d} {sampler:>9}  {cells}", flush=True)


def report_crossover() -> None:
    print("explicit / law by tokens per width, median of 7 repeats")
    for d_model in (32, 128, 512):
        cells = []
        for part in (0.125, 0.25, 0.375, 0.5, 0.75):
            n_tokens = int(part * d_model)
            x = draw_input(max(2, 2**17 // (n_tokens * d_model)), n_tokens, d_model, 0)
            ways = {
                way: (1, lambda seed, way=way, x=x: norms(x, 2, way, seed))
                for way in ("explicit", "law")
            }
            times = interleaved(ways, 7)
            cells.append(f"{part:.3f}: {median_ratio(times, 'explicit', 'law'):.2f}")
        print(f"d {d_model:4d}   " + "   ".join(cells), flush=True)


def report_one(n_networks: int, n_tokens: int, d_model: int, depth: int, target: str) -> None:
    x = draw_input(n_networks, n_tokens, d_model, 0)
    cpu, wall = elapsed(lambda: norms(x, depth, "law", 0))
    print(
        f"{n_networks} networks, n {n_tokens}, d {d_model}, depth {depth}, drawn in law: "
        f"{cpu:.1f} s of CPU, {wall:.1f} s on the clock, "
        f"{1e3 * cpu / n_networks / depth:.1f} ms per network and layer, "
        f"peak {peak_gib():.2f} GiB (target: {target})"
    )


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
        report_one(8, 32, 16_384, 48, "below 180 s")
    elif options.deep:
        report_one(50, 16, 128, 200, "below 1 GiB")
    elif options.crossover:
        report_crossover()
    else:
        report_ratios(options.n_tokens, options.widths, options.repeats)
        report_shares(options.n_tokens, options.widths)


if __name__ == "__main__":
    main()
