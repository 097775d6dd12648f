"""Speed of the training loop on digit reversal: steps per second of one network.

    python benchmarks/training.py                the loop and ensembles against a plain loop
    python benchmarks/training.py --compile      and what torch.compile adds, with a C++ compiler
    python benchmarks/training.py --device cuda

The plain loop is what one would write by hand for one network: torch.nn modules, AdamW, fresh
batches, nothing measured. The loop trains E networks at a time and reads the loss at every step,
as it does in experiments. All ways run in turn in the same process, so that their ratio does not
depend on what else the machine does; times are CPU seconds, on a GPU seconds on the clock.
"""

import argparse
import math
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import SCHEMES
from sigprop.models.trained import TokenClassifier, TrainedEncoder, sinusoids
from sigprop.tasks.reversal import N_DIGITS, ReversalData
from sigprop.training.loop import Run
from sigprop.training.losses import cross_entropy
from sigprop.training.settings import TrainSettings

N_TOKENS, D_MODEL, D_FF, DEPTH = 20, 16, 64, 5


class PlainBlock(nn.Module):
    """A POST-LN block with one head, alpha = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(3))
        self.ff1 = nn.Linear(D_MODEL, D_FF, bias=False)
        self.ff2 = nn.Linear(D_FF, D_MODEL, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        a = (self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(D_MODEL)).softmax(-1)
        x = self.norm1(x + a @ self.v(x))
        return self.norm2(x + self.ff2(functional.relu(self.ff1(x))))


class PlainModel(nn.Module):
    """The network of Figure 5, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_DIGITS, D_MODEL)
        self.blocks = nn.Sequential(*(PlainBlock() for _ in range(DEPTH)))
        self.readout = nn.Linear(D_MODEL, N_DIGITS)
        self.register_buffer("positions", sinusoids(N_TOKENS, D_MODEL))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.readout(self.blocks(self.embedding(tokens) + self.positions))


def plain(batch_size: int, device: str, compiled: bool = False) -> Callable[[int], None]:
    """A plain loop over a number of steps."""
    model: Any = PlainModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    model = torch.compile(model) if compiled else model

    def steps(count: int) -> None:
        for _ in range(count):
            tokens = torch.randint(N_DIGITS, (batch_size, N_TOKENS), device=device)
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flip(-1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return steps


def loop(
    n_members: int, batch_size: int, device: str, compiled: bool = False
) -> Callable[[int], None]:
    """The package's loop over a number of steps of E = n_members networks."""
    generators = [torch.Generator().manual_seed(e) for e in range(n_members)]
    config = EncoderConfig(N_TOKENS, D_MODEL, DEPTH, d_ff=D_FF)
    encoder = TrainedEncoder(config, SCHEMES["post_ln"], generators)
    model = TokenClassifier(encoder, N_DIGITS, N_DIGITS, generators).to(device)
    forward: Any = torch.compile(model) if compiled else model
    run = Run(
        model,
        ReversalData(generators, batch_size, N_TOKENS, device),
        lambda batch, tau: cross_entropy(forward(batch.tokens, tau=tau), batch.targets),
        TrainSettings(steps=10**9, batch_size=batch_size, lr=0.01),
    )

    def steps(count: int) -> None:
        for _ in range(count):
            run.advance()

    return steps


def seconds(work: Callable[[], None], device: str) -> float:
    """CPU seconds; on a GPU seconds on the clock, until it is done."""
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    ways: dict[str, tuple[int, Callable[[int], None]]], steps: int, repeats: int, device: str
) -> None:
    """Print ms per step and network of each way, and its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, (networks, work) in ways.items():
            count = max(2, steps // networks)
            elapsed = seconds(partial(work, count), device)
            if repeat:  # the first is a warm-up
                times[name].append(elapsed / count / networks)
    first = times[next(iter(ways))]
    for name, own in times.items():
        ratios, middle = [a / b for a, b in zip(first, own, strict=True)], statistics.median(own)
        print(
            f"  {name:24} {1e3 * middle:8.2f} ms {1 / middle:7.0f}/s"
            f"   plain / this {statistics.median(ratios):5.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=48, help="per repeat and network")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile too (minutes)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compiler = next(filter(shutil.which, ("g++", "c++", "clang++", "cl")), None)
    compiled = options.compile and (compiler is not None or options.device != "cpu")
    if options.compile and not compiled:
        print("torch.compile: skipped, no C++ compiler (g++, c++, clang++ or cl) on this machine")
    device = options.device
    for batch_size in options.batch_sizes:
        print(f"batch {batch_size}, per step and network, {options.repeats} interleaved repeats")
        ways = {"plain": (1, plain(batch_size, device))}
        for members in options.members:
            ways[f"loop, E = {members}"] = (members, loop(members, batch_size, device))
        if compiled:
            ways["plain, compiled"] = (1, plain(batch_size, device, True))
            for members in (1, 8):
                way = loop(members, batch_size, device, True)
                ways[f"loop, E = {members}, compiled"] = (members, way)
        compare(ways, options.steps, options.repeats, device)


if __name__ == "__main__":
    main()
