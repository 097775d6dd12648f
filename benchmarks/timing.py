"""What benchmarks share: processor and wall time of interleaved runs, ratios, shares of time."""

import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


class Elapsed(NamedTuple):
    """Seconds of processor time of this process, which does not count waiting, and on the clock."""

    cpu: float
    wall: float


Times = dict[str, list[Elapsed]]
Ways = Mapping[str, tuple[float, Callable[[int], object]]]


def draw_input(n_networks: int, n_tokens: int, d_model: int, seed: int) -> Tensor:
    """Gaussian tokens (n_networks, n_tokens, d_model), float32."""
    return torch.randn(n_networks, n_tokens, d_model, generator=torch.Generator().manual_seed(seed))


def elapsed(work: Callable[[], object]) -> Elapsed:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Elapsed(time.process_time() - cpu, time.perf_counter() - wall)


def interleaved(ways: Ways, repeats: int) -> Times:
    """Time per unit of work of every way, {way: (units, work(seed))}, one entry per repeat.

    All ways run in turns, because the speed of a shared machine drifts; one more turn warms up.
    """
    times: Times = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, (units, work) in ways.items():
            cpu, wall = elapsed(lambda w=work, s=repeat: w(s))
            if repeat:
                times[way].append(Elapsed(cpu / units, wall / units))
    return times


def median_ms(times: Times, way: str) -> Elapsed:
    """Median over repeats in milliseconds."""
    cpu, wall = zip(*times[way], strict=True)
    return Elapsed(1e3 * statistics.median(cpu), 1e3 * statistics.median(wall))


def ratio(times: Times, slow: str, fast: str) -> str:
    """Median (smallest to largest) ratio of processor times over repeats; then of wall times."""
    cpu, wall = (
        sorted(a[i] / b[i] for a, b in zip(times[slow], times[fast], strict=True)) for i in (0, 1)
    )
    return (
        f"{statistics.median(cpu):6.1f} ({cpu[0]:.1f} to {cpu[-1]:.1f}), "
        f"{statistics.median(wall):.1f} on the clock"
    )


def median_ratio(times: Times, slow: str, fast: str) -> float:
    """Median ratio of processor times over repeats."""
    return statistics.median(a.cpu / b.cpu for a, b in zip(times[slow], times[fast], strict=True))


def shares(work: Callable[[], object], kinds: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Share of processor time by kind of operation and of the rest, from PyTorch's profiler."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    events = {e.key.removeprefix("aten::"): e.self_cpu_time_total for e in profiler.key_averages()}
    total = sum(events.values())
    found = {
        kind: sum(events.get(name, 0.0) for name in names) / total for kind, names in kinds.items()
    }
    return found | {"rest": 1 - sum(found.values())}


def report_shares(
    widths: Iterable[int],
    kinds: Mapping[str, Iterable[str]],
    work: Callable[[int, str], Callable[[], object]],
) -> None:
    """Print `shares` of work(d_model, sampler) at every width with both samplers."""
    print("\nshare of CPU time  " + "  ".join([*kinds, "rest"]))
    for d_model in widths:
        for sampler in ("law", "explicit"):
            found = shares(work(d_model, sampler), kinds)
            cells = "  ".join(f"{part:{len(kind)}.0%}" for kind, part in found.items())
            print(f"{d_model:7d} {sampler:>9}  {cells}", flush=True)


def report_crossover(work: Callable[[Tensor, str, int], object]) -> None:
    """Print explicit / law of work(x, sampler, seed) by tokens per width."""
    print("explicit / law by tokens per width, median of 7 repeats")
    for d_model in (32, 128, 512):
        cells = []
        for part in (0.125, 0.25, 0.375, 0.5, 0.75):
            n_tokens = int(part * d_model)
            x = draw_input(max(2, 2**17 // (n_tokens * d_model)), n_tokens, d_model, 0)
            ways = {
                way: (1, lambda seed, way=way, x=x: work(x, way, seed))
                for way in ("explicit", "law")
            }
            times = interleaved(ways, 7)
            cells.append(f"{part:.3f}: {median_ratio(times, 'explicit', 'law'):.2f}")
        print(f"d {d_model:4d}   " + "   ".join(cells), flush=True)


def report_one(
    x: Tensor, depth: int, work: Callable[[Tensor, int, str, int], object], target: str
) -> None:
    """Print the time and memory of one call work(x, depth, "law", seed), x (B, n, d)."""
    n_networks, n_tokens, d_model = x.shape
    cpu, wall = elapsed(lambda: work(x, depth, "law", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kiB on Linux
    print(
        f"{n_networks} networks, n {n_tokens}, d {d_model}, depth {depth}, drawn in law: "
        f"{cpu:.1f} s of CPU, {wall:.1f} s on the clock, "
        f"{1e3 * cpu / n_networks / depth:.1f} ms per network and layer, "
        f"peak {peak:.2f} GiB (target: {target})"
    )


def report_ratios(
    times_at: Mapping[int, Callable[[], Times]],
    ratios: Sequence[tuple[str, str]],
    targets: Mapping[int, float],
) -> None:
    """Print, width by width, the median times of every way and the named ratios.

    `times_at[d_model]()` measures, and `targets[d_model]` is of the first ratio.
    """
    for d_model, measure in times_at.items():
        times = measure()
        cells = "  ".join(f"{way} {median_ms(times, way).cpu:.3f}" for way in times)
        print(f"d {d_model}: {cells}")
        for i, (slow, fast) in enumerate(ratios):
            print(f"    {slow + ' / ' + fast:16} {ratio(times, slow, fast)}", end="")
            if i == 0 and (target := targets.get(d_model)):
                met = median_ratio(times, slow, fast) >= target
                print(f"; target {target}: {'met' if met else 'MISSED'}", end="")
            print(flush=True)
