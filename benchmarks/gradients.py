"""Speed of forward and backward passes of random encoders, side by side in one run.

    python benchmarks/gradients.py               draws in law, explicit weights, plain autograd
    python benchmarks/gradients.py --wide        8 networks of width 16,384 and depth 48
    python benchmarks/gradients.py --deep        50 networks of width 128 and depth 200
    python benchmarks/gradients.py --crossover   explicit / law against tokens per width

One thread, float32, n = 32, one head, ReLU, softmax attention, no LN, strengths 1/sqrt(L). Every
way returns the gradient norms of all weights. Repeats are interleaved and ratios are medians over
repeats, because the speed of a shared machine drifts. Times are processor time per network and
layer. Draws in law need 6 n d random numbers per layer (explicit weights 5 d^2), about a third of
their time at d = 2048; factorizations of X and D take another third.
"""

import argparse
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sigprop.instruments.end_to_end import gradient_norms
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradients import make_gradient_sampler
from sigprop.models.schemes import SCHEMES

SCHEME = SCHEMES["no_ln_scaled"]
DEPTH = 4
TARGETS = {1024: 8, 2048: 50}  # explicit / law
KINDS = {
    "random numbers": ("normal_", "_standard_gamma"),
    "factorizations": ("geqrf", "ormqr", "triu"),
    "matrix products": ("bmm", "mm", "addmm", "baddbmm"),
}


def draw_input(n_networks: int, n_tokens: int, d_model: int, seed: int) -> Tensor:
    return torch.randn(n_networks, n_tokens, d_model, generator=torch.Generator().manual_seed(seed))


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


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(n_tokens: int, d_model: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per network and layer of each way, one list entry per interleaved repeat."""
    few = max(1, min(16, 2**21 // d_model**2))  # networks with explicit weights
    x = draw_input(16, n_tokens, d_model, 0)
    ways: dict[str, tuple[int, Callable[[int], object]]] = {
        "law": (len(x), lambda seed: norms(x, DEPTH, "law", seed)),
        "explicit": (few, lambda seed: norms(x[:few], DEPTH, "explicit", seed)),
        "plain": (few, lambda seed: plain_autograd(x[:few], DEPTH, seed)),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, (n_networks, work) in ways.items():
            elapsed = seconds(lambda w=work, s=repeat: w(s))
            if repeat:  # the first is a warm-up
                times[way].append(elapsed / (n_networks * DEPTH))
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> tuple[float, float, float]:
    """Median, smallest and largest ratio over repeats."""
    ratios = [a / b for a, b in zip(times[slow], times[fast], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def report_ratios(n_tokens: int, widths: Iterable[int], repeats: int) -> None:
    print(f"n = {n_tokens}, {repeats} interleaved repeats, ms per network and layer (medians)")
    print(
        "     d       law  explicit     plain   explicit/law  (range)   target   plain/law  (range)"
    )
    for d_model in widths:
        times = compare(n_tokens, d_model, repeats)
        law, explicit, plain = (
            1e3 * statistics.median(times[way]) for way in ("law", "explicit", "plain")
        )
        gain, low, high = ratio(times, "explicit", "law")
        loop, loop_low, loop_high = ratio(times, "plain", "law")
        print(
            f"{d_model:6d} {law:9.3f} {explicit:9.2f} {plain:9.2f}   "
            f"{gain:6.1f} ({low:.1f} to {high:.1f})   {TARGETS.get(d_model, '-')}   "
            f"{loop:6.1f} ({loop_low:.1f} to {loop_high:.1f})",
            flush=True,
        )


def report_shares(n_tokens: int, widths: Iterable[int]) -> None:
    print("\nshare of CPU time  " + "  ".join([*KINDS, "rest"]))
    for d_model in widths:
        for sampler in ("law", "explicit"):
            x = draw_input(8 if sampler == "law" else 1, n_tokens, d_model, 1)
            norms(x, DEPTH, sampler, 0)
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                norms(x, DEPTH, sampler, 0)
            events = {
                e.key.removeprefix("aten::"): e.self_cpu_time_total for e in profiler.key_averages()
            }
            total = sum(events.values())
            found = [
                sum(events.get(name, 0.0) for name in names) / total for names in KINDS.values()
            ]
            cells = "  ".join(
                f"{part:{len(kind)}.0%}"
                for kind, part in zip([*KINDS, "rest"], [*found, 1 - sum(found)], strict=True)
            )
            print(f"{d_model:7d} {sampler:>9}  {cells}", flush=True)


def report_crossover() -> None:
    print("explicit / law by tokens per width, median of 7 repeats")
    for d_model in (32, 128, 512):
        cells = []
        for part in (0.125, 0.25, 0.375, 0.5, 0.75):
            n_tokens = int(part * d_model)
            x = draw_input(max(2, 2**17 // (n_tokens * d_model)), n_tokens, d_model, 0)
            runs = [
                [seconds(lambda s=s, x=x: norms(x, 2, s, 0)) for s in ("explicit", "law")]
                for _ in range(8)
            ][1:]
            cells.append(f"{part:.3f}: {statistics.median(a / b for a, b in runs):.2f}")
        print(f"d {d_model:4d}   " + "   ".join(cells), flush=True)


def report_one(n_networks: int, n_tokens: int, d_model: int, depth: int, target: str) -> None:
    x = draw_input(n_networks, n_tokens, d_model, 0)
    elapsed = seconds(lambda: norms(x, depth, "law", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{n_networks} networks, n {n_tokens}, d {d_model}, depth {depth}, drawn in law: "
        f"{elapsed:.1f} s, {1e3 * elapsed / n_networks / depth:.1f} ms per network and layer, "
        f"peak {peak:.2f} GiB (target: {target})"
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
