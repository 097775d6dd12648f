"""How a run is trained: frozen, checked, and plain enough to be compared key by key."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "steps", "inverse_sqrt", "linear_warmup", "linear_decay")
TAU_FORMS = ("from_one", "from_zero")


@dataclass(frozen=True)
class TrainSettings:
    """One run of the loop.

    Attributes:
        steps: updates to make.
        batch_size: sequences per member and step; the data is made with it.
        optimizer: "adam" or "sgd", both with decoupled weight decay.
        lr: learning rate before the schedule.
        betas, eps: of Adam.
        momentum: of SGD.
        weight_decay: per update, weights shrink by lr * weight_decay.
        schedule: factor on lr by step, see `training.schedules`.
        warmup_steps: of "inverse_sqrt", "linear_warmup" and "linear_decay", which need it, and
            "steps".
        milestones, decay: "steps" multiplies lr by `decay` at these fractions of the run.
        tau: final inverse temperature; None leaves the scheme's alone.
        tau_warmup_steps, tau_form: how tau gets there, see `training.schedules.temperature`.
        clip_norm: upper limit of each member's gradient norm; None does not clip.
        label_smoothing: for `losses.cross_entropy`, in [0, 1); the loss takes it from here.
        mixed_precision: bfloat16 autocast, on CUDA only.
        on_nonfinite: "stop" raises at the first NaN or infinite loss; "freeze" records the member
            as diverged and continues with the others.
        keep_best: quantity whose least value, mean over members, marks the weights to keep with
            the checkpoints ("validation_loss"); None keeps none.
        log_every: steps between lines of the log, records of the training loss, and, on CUDA,
            looks at whether the loss is finite (each look waits for the GPU).
        checkpoint_seconds: at least this long between checkpoints; 0 writes one per step.

    Raises ValueError, one line, for a value out of range.
    """

    steps: int
    batch_size: int
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "steps", "inverse_sqrt", "linear_warmup", "linear_decay"] = (
        "constant"
    )
    warmup_steps: int = 0
    milestones: tuple[float, ...] = (0.4, 0.8)
    decay: float = 0.1
    tau: float | None = None
    tau_warmup_steps: int = 0
    tau_form: Literal["from_one", "from_zero"] = "from_one"
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    mixed_precision: bool = False
    on_nonfinite: Literal["stop", "freeze"] = "stop"
    keep_best: str | None = None
    log_every: int = 50
    checkpoint_seconds: float = 20.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("lr", "eps", "decay"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("weight_decay", "warmup_steps", "tau_warmup_steps", "checkpoint_seconds"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name, beta in (("momentum", self.momentum), *(("betas", b) for b in self.betas)):
            _require(0 <= beta < 1, name, beta, "in [0, 1)")
        _require(
            0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "in [0, 1)"
        )
        for fraction in self.milestones:
            _require(0 < fraction < 1, "milestones", fraction, "fractions of the run, in (0, 1)")
        for name in ("tau", "clip_norm"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "positive, or None")
        for name, allowed in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("tau_form", TAU_FORMS),
            ("on_nonfinite", ("stop", "freeze")),
        ):
            value = getattr(self, name)
            _require(value in allowed, name, value, f"one of {', '.join(allowed)}")
        if self.schedule in ("inverse_sqrt", "linear_warmup", "linear_decay"):
            _require(
                self.warmup_steps > 0,
                "warmup_steps",
                self.warmup_steps,
                f"at least 1 with schedule {self.schedule!r}",
            )
        if self.schedule == "linear_decay":
            _require(
                self.warmup_steps <= self.steps,
                "warmup_steps",
                self.warmup_steps,
                f"at most steps={self.steps} with schedule 'linear_decay'",
            )

    def record(self) -> dict[str, Any]:
        """Everything that decides the result, as plain types: not how often it is looked at."""
        settings = asdict(self)
        del settings["checkpoint_seconds"]
        return settings


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
