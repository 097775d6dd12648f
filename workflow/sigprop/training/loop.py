"""The training loop: one for every experiment, resumable, for one network or an ensemble.

A member is one network; losses and measurements have a leading member axis E. So have parameters
(see `models.trained`), where the members never mix; those of one network may do without the axis.
At step t, after t updates,

    g_t = grad sum_e loss_e(w_t) ,   measurements of (w_t, g_t, optimizer) ,   w_{t+1} = update ,

so measurements at t = 0 see the initial weights with a gradient, and those at the last step the
final ones: the loop computes one gradient more than it makes updates.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.progress import progress
from sigprop.training.checkpoints import Checkpoints
from sigprop.training.data import Data
from sigprop.training.divergence import Divergence
from sigprop.training.log import Log, say
from sigprop.training.measurements import History, Measurement, Moment
from sigprop.training.optimizers import clip_gradients, make_optimizer
from sigprop.training.schedules import make_scheduler, temperature
from sigprop.training.settings import TrainSettings
from sigprop.training.signals import Termination

# loss(batch, tau) -> (E,), differentiable; tau is None where the scheme's holds.
Loss = Callable[[Any, float | None], Tensor]


def train(
    model: nn.Module,
    data: Data,
    loss: Loss,
    settings: TrainSettings,
    *,
    measurements: Sequence[Measurement] = (),
    checkpoints: Checkpoints | None = None,
    description: str = "training",
) -> "Run":
    """Train `model` in place for `settings.steps` updates, resuming where a checkpoint left off.

    Args:
        model: already on its device. `model.n_members` is E, with parameters (E, ...); a module
            without it is one network with parameters of any shape.
        data: batches; its position is part of the checkpoint.
        loss: of one batch, one value per member.
        measurements: what is kept, at which steps.
        checkpoints: where to save and resume; None trains without.

    Returns the run: `history`, what was measured, and `divergence.at`, (E,).

    Raises:
        FloatingPointError: NaN or infinite loss with on_nonfinite="stop".
        UserError: out of GPU memory; checkpoints of other settings, or that cannot be written.
        SystemExit: 143, after SIGTERM and a checkpoint.
    """
    run = Run(model, data, loss, settings, measurements, checkpoints)
    if checkpoints is not None and (found := checkpoints.latest()) is not None:
        run.load_state_dict(found)
        say(f"{description}: resumed at step {run.step}")
    else:
        run.log.rewind(0)
    with Termination() as termination, progress(settings.steps, description, "step") as bar:
        saved = time.monotonic()
        while not run.done:
            try:
                run.advance()
            except torch.cuda.OutOfMemoryError as error:
                raise UserError(
                    f"out of GPU memory at step {run.step} with batch_size={settings.batch_size}: "
                    "lower batch_size, or train fewer members at a time"
                ) from error
            bar.set_postfix(loss=f"{run.mean_loss:.4g}", lr=f"{run.lr:.3g}", refresh=False)
            bar.update(run.step - bar.n)
            if checkpoints is not None:
                due = time.monotonic() - saved >= settings.checkpoint_seconds
                if due or run.done or termination.asked:
                    checkpoints.save(run.step, run.state_dict())
                    saved = time.monotonic()
            if termination.asked:
                kept = "nothing saved" if checkpoints is None else f"saved in {checkpoints.folder}"
                say(f"{description}: SIGTERM at step {run.step}, {kept}")
                raise SystemExit(143)
    return run


class Run:
    """Everything that changes during a run, and the one step that changes it."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        loss: Loss,
        settings: TrainSettings,
        measurements: Sequence[Measurement] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.model, self.data, self.loss, self.settings = model, data, loss, settings
        self.measurements, self.checkpoints = measurements, checkpoints
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.parameters, settings)
        self.scheduler = make_scheduler(self.optimizer, settings)
        self.tau = temperature(settings)
        self.device, self.n_members = self.parameters[0].device, getattr(model, "n_members", 1)
        self.divergence = Divergence(self.n_members, self.device, settings.on_nonfinite == "stop")
        self.history = History()
        self.log = Log(checkpoints.log if checkpoints is not None else None)
        self.step, self.seconds, self.done = 0, 0.0, False
        self.mean_loss, self.lr = float("nan"), settings.lr
        half = settings.mixed_precision and self.device.type == "cuda"
        self.precision = torch.autocast("cuda", torch.bfloat16, enabled=half)

    def advance(self) -> None:
        """Gradient, measurements and, unless this is the last step, the update."""
        start = time.perf_counter()
        settings, step = self.settings, self.step
        self.done = step == settings.steps
        look = self.done or step % settings.log_every == 0
        self.lr, tau = float(self.scheduler.get_last_lr()[0]), self.tau(step)

        batch = self.data.next()
        self.optimizer.zero_grad()
        with self.precision:
            losses = self.loss(batch, tau)  # (E,)
        losses.sum().backward()
        self.divergence.note(losses.detach(), step)
        if look or self.device.type == "cpu":
            self.divergence.look(self.lr)
        self.divergence.freeze(self.parameters, self.optimizer)
        if settings.clip_norm is not None:
            clip_gradients(self.parameters, settings.clip_norm, self.n_members)

        self._measure(Moment(step, self.model, self.optimizer, batch, self.lr, tau))
        if not self.done:
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
        self.seconds += time.perf_counter() - start
        if look:
            self._report(step, losses.detach(), tau)

    def _measure(self, moment: Moment) -> None:
        due = [each.measure for each in self.measurements if moment.step in each.at]
        if not due:
            return
        self.model.eval()
        with torch.no_grad():
            for measure in due:
                for quantity, value in measure(moment).items():
                    self.history.add(moment.step, quantity, value, self.divergence.gone)
        self.model.train()
        best = self.settings.keep_best
        if best and self.checkpoints is not None and self.history.is_best(best, moment.step):
            self.checkpoints.save_best(moment.step, {"model": self.model.state_dict()})

    def _report(self, step: int, losses: Tensor, tau: float | None) -> None:
        gone = self.divergence.gone
        self.history.add(step, "train_loss", losses, gone)
        self.mean_loss = float(losses[~gone].mean())
        line = {"step": step, "loss": self.mean_loss, "lr": self.lr, "seconds": self.seconds}
        line |= {} if tau is None else {"tau": tau}
        line |= {"diverged": int(gone.sum())} if bool(gone.any()) else {}
        self.log.write(line)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in tensors and plain types."""
        parts = {name: getattr(self, name).state_dict() for name in _STATEFUL}
        return parts | {
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            "history": [self.history.steps, self.history.values],
            "progress": [self.step, self.done, self.seconds, self.mean_loss],
            "log": self.log.position(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        self.history.steps, self.history.values = state["history"]
        self.step, self.done, self.seconds, self.mean_loss = state["progress"]
        self.log.rewind(state["log"])


_STATEFUL = ("model", "optimizer", "scheduler", "data", "divergence")
