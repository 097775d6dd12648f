"""What benchmarks share: processor and wall time of interleaved runs, ratios, shares of time."""

import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
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


def peak_gib() -> float:
    """Largest resident set of this process so far (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
