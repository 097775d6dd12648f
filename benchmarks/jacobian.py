"""Cost of the exact Jacobian norms of softmax attention, against automatic differentiation.

    python benchmarks/jacobian.py                  all sections, about three minutes
    python benchmarks/jacobian.py ratios           ours and torch.func.jacrev side by side
    python benchmarks/jacobian.py batches          one network against 64 in one call
    python benchmarks/jacobian.py scaling          time and peak memory up to (1024, 1024)
    python benchmarks/jacobian.py collapse         accuracy near rank collapse

One thread, float64, CPU, d_k = d_v = d. Times are processor time, which does not count waiting for
other processes. The two sides of a ratio are one network each and are timed in turns; a ratio is
that of the best times, alongside the median and range over rounds and the median on the clock.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from timing import elapsed, shares
from torch import Tensor
from torch.func import jacrev

from sigprop.instruments.jacobian import attention_jacobian_norms

# (n, d) and the least ratio jacrev / ours for Q, K, V together
RATIO_TARGETS = {(16, 32): 40, (32, 32): 100, (32, 64): 1000, (64, 64): 3000}
MEMORY_LIMIT_MIB = 1024.0  # at (512, 512), all four norms
ALONG_N = [(n, 64) for n in (128, 256, 512, 1024)]
ALONG_D = [(64, d) for d in (128, 256, 512, 1024)]
DIAGONAL = [(n, n) for n in (128, 256, 512, 1024)]


def draw(n: int, d: int) -> tuple[Tensor, ...]:
    """Tokens (n, d) with unit variance and three (d, d) weights with entry variance 1/d."""
    generator = torch.Generator().manual_seed(n * 10_000 + d)
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    w = torch.randn(3, d, d, dtype=torch.float64, generator=generator) / math.sqrt(d)
    return x, *w.unbind()


def attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    logits = (x @ w_q) @ (x @ w_k).mT / math.sqrt(w_q.shape[-1])
    return torch.softmax(logits, -1) @ (x @ w_v)


def by_jacrev(*tensors: Tensor) -> dict[str, Tensor]:
    jacobians = jacrev(attention, argnums=(1, 2, 3))(*tensors)
    return {name: j.square().sum() for name, j in zip("qkv", jacobians, strict=True)}


def ours_qkv(*tensors: Tensor) -> dict[str, Tensor]:
    return attention_jacobian_norms(*tensors, which=("q", "k", "v"))


def repeat(f: Callable[..., object], tensors: Sequence[Tensor], calls: int) -> None:
    for _ in range(calls):
        f(*tensors)


def seconds(f: Callable[..., object], tensors: Sequence[Tensor], calls: int) -> float:
    return elapsed(lambda: repeat(f, tensors, calls)).cpu / calls


def ratios() -> None:
    print("Norms for Q, K, V (+X: and the input): float64, one thread, best time in ms")
    print(
        f"{'n, d':>9} {'jacrev':>8} {'ours':>8} {'ours +X':>8} {'ratio':>7} {'target':>7} {'':>6} "
        f"{'median (range), on the clock':>36} {'Jacobians':>10} {'max rel diff':>13}"
    )
    for (n, d), target in RATIO_TARGETS.items():
        tensors = draw(n, d)
        reference, value = by_jacrev(*tensors), ours_qkv(*tensors)
        difference = max(abs(float(value[k] / reference[k]) - 1) for k in "qkv")
        best = {"jacrev": math.inf, "ours": math.inf, "ours +X": math.inf}
        rounds: list[tuple[float, float]] = []
        for _ in range(5 if n * d >= 4096 else 12):
            slow = elapsed(lambda t=tensors: by_jacrev(*t))
            best["jacrev"] = min(best["jacrev"], slow.cpu)
            for name, f in (("ours +X", attention_jacobian_norms), ("ours", ours_qkv)):
                seconds(f, tensors, 3)  # jacrev has emptied the caches
                calls = [elapsed(lambda f=f, t=tensors: repeat(f, t, 10)) for _ in range(30)]
                cpu, wall = (statistics.median(z) / 10 for z in zip(*calls, strict=True))
                best[name] = min([best[name], *(z.cpu / 10 for z in calls)])
            rounds.append((slow.cpu / cpu, slow.wall / wall))
        ratio = best["jacrev"] / best["ours"]
        cpu_ratios, wall_ratios = (sorted(z) for z in zip(*rounds, strict=True))
        spread = (
            f"{statistics.median(cpu_ratios):.0f}x ({cpu_ratios[0]:.0f} to {cpu_ratios[-1]:.0f}), "
            f"{statistics.median(wall_ratios):.0f}x"
        )
        stored = 8 * n * d * 3 * d * d / 1e6
        print(
            f"{n:>4},{d:>4} {1e3 * best['jacrev']:>8.3g} {1e3 * best['ours']:>8.3f} "
            f"{1e3 * best['ours +X']:>8.3f} {ratio:>6.0f}x {target:>6}x "
            f"{'met' if ratio >= target else 'MISSED':>6} {spread:>36} "
            f"{stored:>7.0f} MB {difference:>13.1e}",
            flush=True,
        )


def batches() -> None:
    print("Q, K, V, best time in ms per network: one network in a call, and 64")
    print(f"{'n, d':>9} {'1':>8} {'64':>8}   share of matrix products in the time of one")
    for n, d in RATIO_TARGETS:
        one = draw(n, d)
        many = tuple(torch.stack([z] * 64) for z in one)
        alone = min(seconds(ours_qkv, one, 10) for _ in range(100))
        together = min(seconds(ours_qkv, many, 1) for _ in range(20)) / 64
        products = shares(lambda t=one: repeat(ours_qkv, t, 100), {"products": ("mm", "bmm")})
        print(
            f"{n:>4},{d:>4} {1e3 * alone:>8.3f} {1e3 * together:>8.3f}   "
            f"{products['products']:.0%}",
            flush=True,
        )


def resident_mib(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MiB; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}; run on Linux")


def row(n: int, d: int) -> None:
    """One row of the scaling table, in this process: printed as JSON."""
    attention_jacobian_norms(*draw(8, 8))  # libraries loaded, thread pools made
    tensors = draw(n, d)
    before = resident_mib("VmRSS")
    attention_jacobian_norms(*tensors)
    peak = resident_mib("VmHWM") - before
    calls = max(1, int(2e8 / operations(n, d, with_x=True)))
    best_x = min(seconds(attention_jacobian_norms, tensors, calls) for _ in range(5))
    best = min(seconds(ours_qkv, tensors, calls) for _ in range(5))
    print(json.dumps({"n": n, "d": d, "qkv": best, "qkvx": best_x, "mib": max(peak, 0.0)}))


def operations(n: int, d: int, with_x: bool) -> float:
    """Multiplications and additions in the matrix products, d_k = d_v = d."""
    means = 2 * n**3 if n <= 2 * d else 4 * n**2 * d  # A (K K^T), or (A K) K^T
    qkv = 6 * n * d**2 + 10 * n**2 * d + 3 * means + 4 * n**3
    x = 8 * n * d**2 + 10 * n**2 * d + means + 2 * n**3
    return float(qkv + x if with_x else qkv)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope of log value on log size."""
    a, b = [math.log(s) for s in sizes], [math.log(v) for v in values]
    return statistics.linear_regression(a, b).slope


def scaling() -> None:
    print("Scaling, float64, one thread, each row in a fresh process; memory is the growth of the")
    print("resident set at its peak over one call with all four norms, inputs not counted")
    print(f"{'n, d':>11} {'Q,K,V ms':>10} {'+X ms':>10} {'Gflop/s +X':>11} {'MiB':>8}")
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for n, d in dict.fromkeys(ALONG_N + ALONG_D + DIAGONAL):
        command = [sys.executable, __file__, "row", str(n), str(d)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[n, d] = r = json.loads(done.stdout)
        speed = operations(n, d, with_x=True) / r["qkvx"] / 1e9
        print(
            f"{n:>6},{d:>4} {1e3 * r['qkv']:>10.3g} {1e3 * r['qkvx']:>10.3g} "
            f"{speed:>11.1f} {r['mib']:>8.1f}"
        )
    used = rows[512, 512]["mib"]
    verdict = "met" if used < MEMORY_LIMIT_MIB else "MISSED"
    print(f"memory at (512, 512): {used:.0f} MiB, limit {MEMORY_LIMIT_MIB:.0f} MiB: {verdict}")
    print("Exponents fitted over each line; 'count' is the fit to the number of operations")
    print("  n^3 + n^2 (d + d_k + d_v) + n d (d_k + d_v) with its constants")
    for label, line, axis in (
        ("n, d = 64", ALONG_N, 0),
        ("d, n = 64", ALONG_D, 1),
        ("n = d", DIAGONAL, 0),
    ):
        sizes = [size[axis] for size in line]
        for name in ("qkv", "qkvx"):
            measured = exponent(sizes, [rows[size][name] for size in line])
            counted = exponent(sizes, [operations(*size, name == "qkvx") for size in line])
            print(f"  {label:>9}  {name:>4}: time {measured:.2f}, count {counted:.2f}")


def collapse() -> None:
    print("Near rank collapse: x = 1 m^T + spread * N(n, d), n = 12, d = 16.")
    print("Relative difference of jacrev from ours, same tokens; the tests check ours in 60 digits")
    print(
        f"{'spread':>8} {'||dS/dW^Q||^2':>14}   float64 Q         K         V  float32 Q         K"
    )
    x, *w = draw(12, 16)
    mean = draw(13, 16)[0][:1]
    for spread in (1.0, 0.1, 1e-2, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        tensors = (mean + spread * x, *w)
        off = []
        for inputs, names in ((tensors, "qkv"), (tuple(z.float() for z in tensors), "qk")):
            reference, value = by_jacrev(*inputs), ours_qkv(*inputs)
            off += [f"{abs(float(reference[k] / value[k]) - 1):9.1e}" for k in names]
        print(f"{spread:>8.0e} {float(ours_qkv(*tensors)['q']):>14.3e}  {' '.join(off)}")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "section",
        nargs="?",
        default="all",
        choices=["all", "ratios", "batches", "scaling", "collapse", "row"],
    )
    parser.add_argument("size", nargs="*", type=int, help="n d, for the section row")
    arguments = parser.parse_args()
    if arguments.section == "row":
        row(*arguments.size)
        return
    sections = {"ratios": ratios, "batches": batches, "scaling": scaling, "collapse": collapse}
    for name, section in sections.items():
        if arguments.section in ("all", name):
            section()
            print()


if __name__ == "__main__":
    main()
