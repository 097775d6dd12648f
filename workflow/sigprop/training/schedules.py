"""Learning rate and inverse temperature as functions of the step.

`step` counts the updates made before this one: the first update has step 0.
"""

from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sigprop.training.settings import TrainSettings

Factor = Callable[[int], float]


def constant() -> Factor:
    """f(t) = 1."""
    return lambda step: 1.0


def linear_warmup(warmup_steps: int) -> Factor:
    """f(t) = min(1, (t + 1) / w): the first update already moves."""
    return lambda step: min(1.0, (step + 1) / warmup_steps)


def inverse_sqrt(warmup_steps: int) -> Factor:
    """f(t) = min( (t + 1) / w, sqrt(w / (t + 1)) ), 1 at the end of the warm-up."""
    return lambda step: min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)


def linear_decay(total: int, warmup_steps: int) -> Factor:
    """f(t) = min( (t + 1) / w, (T - t) / (T + 1 - w) ): up to 1 at t = w - 1, down to 0 at t = T.

    T = `total` updates are those at t = 0 to T - 1, so the last one still moves. Needs 1 <= w <= T.
    """
    falling = total + 1 - warmup_steps
    return lambda step: min((step + 1) / warmup_steps, (total - step) / falling)


def steps(total: int, milestones: tuple[float, ...] = (0.4, 0.8), decay: float = 0.1) -> Factor:
    """f(t) = decay^k with k the milestones a for which t >= a * total.

    40 % and 80 % are those of Noci et al. 2022, arXiv 2206.03126, appendix on hyperparameters.
    """
    return lambda step: decay ** sum(step >= fraction * total for fraction in milestones)


def learning_rate(settings: TrainSettings) -> Factor:
    """The factor on the learning rate that `settings` ask for."""
    if settings.schedule == "steps":
        step = steps(settings.steps, settings.milestones, settings.decay)
        if not settings.warmup_steps:
            return step
        warm = linear_warmup(settings.warmup_steps)
        return lambda t: warm(t) * step(t)
    if settings.schedule == "inverse_sqrt":
        return inverse_sqrt(settings.warmup_steps)
    if settings.schedule == "linear_decay":
        return linear_decay(settings.steps, settings.warmup_steps)
    if settings.schedule == "linear_warmup":
        return linear_warmup(settings.warmup_steps)
    return constant()


def make_scheduler(optimizer: Optimizer, settings: TrainSettings) -> LambdaLR:
    """torch's own scheduler around `learning_rate`; step it once after each update."""
    return LambdaLR(optimizer, learning_rate(settings))


def temperature(settings: TrainSettings) -> Callable[[int], float | None]:
    """Inverse temperature by step, or None where the settings leave it to the scheme.

        from_one    tau(t) = 1 + (tau - 1) min(1, t / w)
        from_zero   tau(t) = tau min(1, t / w)          exactly uniform attention at t = 0

    w = `tau_warmup_steps`; 0 has no warm-up. The paper warms tau up over 1000 steps (Noci et al.
    2022, arXiv 2206.03126, section 4); the linear forms are our choice.
    """
    tau, warmup = settings.tau, settings.tau_warmup_steps
    if tau is None:
        return lambda step: None
    start = 1.0 if settings.tau_form == "from_one" else 0.0

    def at(step: int) -> float:
        done = min(1.0, step / warmup) if warmup else 1.0
        return start + (tau - start) * done

    return at
