"""Time of Cowsik et al. 2024: phase diagrams by theory and by simulation, trajectories, moments.

    python benchmarks/phases.py            all sections, about two minutes
    python benchmarks/phases.py diagrams   both exponents on 200 x 200 settings, two planes
    python benchmarks/phases.py moments    softmax and MLP moments, and their interpolants
    python benchmarks/phases.py layers     trajectories and gradients of 2,500 settings
    python benchmarks/phases.py networks   20 x 20 settings, 8 random networks each

One thread. Theory in float64: processor time of the first call, with nothing memoized, and of a
second call. Networks in float32: the same of two calls, and the target for two cores on the clock.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from sigprop.experiments.context import Context
from sigprop.experiments.geometry import simulation as geometry
from sigprop.theory.cowsik2024 import Architecture, block_map, lambda_g_traj, tied, trajectory
from sigprop.theory.cowsik2024_phases import (
    critical_sigma_w,
    exponents,
    lambda_a,
    lambda_g,
    lambda_g_star,
    stable_rho,
)
from sigprop.theory.mlp_moments import mlp_curves, mlp_moments
from sigprop.theory.softmax_moments import softmax_curves, softmax_moments

TARGET_SECONDS = 5.0  # both exponents on both planes
TARGET_NETWORKS = 120.0  # one simulated plane, on two cores


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def report(name: str, work: Callable[[], object]) -> float:
    first, again = seconds(work), seconds(work)
    print(f"  {name:<62} {first:8.3f} s {again:8.3f} s")
    return first


def both(architecture: Architecture) -> None:
    lambda_a(architecture)
    lambda_g(architecture)


def diagrams() -> None:
    print("200 x 200 diagrams")
    alpha, sigma_w = np.meshgrid(np.linspace(0.0, 0.98, 200), np.linspace(0.6, 4.0, 200))
    alpha_attn, fine = np.meshgrid(np.linspace(0.0, 0.98, 200), np.linspace(0.605, 4.005, 200))
    total = 0.0
    for mode in ("conv", "renorm"):
        joint = tied(alpha, alpha, sigma_w, mode=mode)
        total += report(
            f"lambda_a, lambda_g over alpha x sigma_w, {mode}",
            partial(both, joint),
        )
        attention = tied(alpha_attn, 0.5, fine, mode=mode)
        total += report(
            f"lambda_a, lambda_g over alpha_attn x sigma_w, {mode}",
            partial(both, attention),
        )
    print(f"  four diagrams together: {total:.3f} s, target {TARGET_SECONDS:g} s")
    line = np.linspace(0.01, 0.9, 200)
    report("critical sigma_w at 200 alphas", lambda: critical_sigma_w(tied(line, line, 1.0)))


def moments() -> None:
    print("moments")
    report("S, R, TQ, TR at n 32, v 0.5, rho 0.5", lambda: softmax_moments(0.5, 0.5, 32))
    report("S, R, TQ, TR at n 32, v 36, rho 0.1", lambda: softmax_moments(36.0, 0.1, 32))
    for sigma_a in (1.05, 3.0, 6.0):
        report(
            f"interpolant in rho, n 32, sigma_a {sigma_a:g}",
            partial(softmax_curves, sigma_a, 32),
        )
    report("V2, D2 of tanh at sigma 2, rho 0.5", lambda: mlp_moments(2.0, 0.5))
    report("interpolants of tanh, 50 sigma in [1, 4]", lambda: mlp_curves(np.linspace(1, 4, 50)))
    report("one block, n 32, (.5, .5, 2.5)", lambda: block_map(tied(0.5, 0.5, 2.5), 1.0, 0.5))
    report("report of one setting, depth 24", lambda: exponents(tied(0.5, 0.5, 2.45), 24))


def layers() -> None:
    print("2,500 settings (50 alpha x 50 sigma_w), n 32, depth 24")
    alpha, sigma_w = np.meshgrid(np.linspace(0.02, 0.97, 50), np.linspace(1.01, 4.01, 50))
    a = tied(alpha, alpha, sigma_w)
    report("q and rho by layer", lambda: trajectory(a, 24))
    report("lambda_g_traj", lambda: lambda_g_traj(a, 24))
    report("stable fixed points", lambda: stable_rho(a))
    report("lambda_g_star", lambda: lambda_g_star(a))


def networks() -> None:
    print("20 x 20 settings, 8 networks each, n 32, d 128, depth 16")
    plane = {
        "n_tokens": 32,
        "d_model": 128,
        "depth": 16,
        "alpha_attn": np.linspace(0.05, 0.95, 20).tolist(),
        "sigma_w1": np.linspace(0.6, 4.0, 20).tolist(),
        "q": "stationary",
        "rho": 0.999999,
        "layers": [4, 16],
        "n_networks": 8,
    }
    backward = {"readout": "common", "quantities": ["q", "q_minus_p", "g"]}
    cases = {
        "q, p: networks of their own": {},
        "q, p: the same 8 networks at every setting": {"shared_weights": True},
        "q, p, g: networks of their own": backward,
        "q, p, g: the same 8 networks at every setting": backward | {"shared_weights": True},
    }
    for name, change in cases.items():
        settings = geometry.GeometrySettings.model_validate({"grids": {"plane": plane | change}})
        report(name, partial(geometry.run, settings, Context("geometry_phases", 1)))
    print(f"  target {TARGET_NETWORKS:g} s on two cores")


SECTIONS = {"diagrams": diagrams, "moments": moments, "layers": layers, "networks": networks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("section", nargs="?", choices=SECTIONS)
    chosen = parser.parse_args().section
    print(f"  {'':<62} {'first':>8}   {'again':>8}")
    for name, section in SECTIONS.items():
        if chosen in (None, name):
            section()


if __name__ == "__main__":
    main()
