"""Members whose loss stops being a number."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from sigprop.training.optimizers import scale_members, silence


class Divergence:
    """Notices NaN or infinite losses; stops the run or freezes the member.

    Attributes:
        at: (E,) int64, the step at which a member diverged, -1 for the others.
        last: (E,) float32, each member's last finite loss.

    Both live on the model's device, so that nothing waits for a GPU at every step.
    """

    def __init__(self, n_members: int, device: torch.device, stop: bool) -> None:
        self.stop = stop
        self.at = torch.full((n_members,), -1, device=device)
        self.last = torch.full((n_members,), torch.nan, device=device)
        self._silent = torch.zeros(n_members, dtype=torch.bool, device=device)
        self._any = False

    @property
    def gone(self) -> Tensor:
        """(E,) bool: the members that diverged."""
        return self.at >= 0

    def note(self, losses: Tensor, step: int) -> None:
        """Record the losses (E,) of one step."""
        bad = ~torch.isfinite(losses)
        self.at.masked_fill_(bad & (self.at < 0), step)
        self.last = torch.where(bad, self.last, losses)

    def look(self, lr: float) -> None:
        """Raise FloatingPointError if the run should stop; waits for the device."""
        gone = self.gone
        self._any = bool(gone.any())
        if not (self._any and self.stop):
            return
        first = int(self.at[gone].min())
        which = [e for e, at in enumerate(self.at.tolist()) if at == first]
        members = ", ".join(map(str, which[:4])) + (", ..." if len(which) > 4 else "")
        before = ", ".join(f"{float(self.last[e]):.4g}" for e in which[:4])
        raise FloatingPointError(
            f"loss of member {members} of {len(gone)} is not finite at step {first} (last finite: "
            f"{before}; lr {lr:.3g}): lower lr, add warm-up, clip gradients, or scale the residual "
            "branches"
        )

    def freeze(self, parameters: Sequence[Tensor], optimizer: Optimizer) -> None:
        """Hold the members that diverged at zero, weights and gradients."""
        if not self._any:
            return
        gone = self.gone
        for p in parameters:
            if p.grad is not None:
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
        scale_members(parameters, ~gone)
        if bool((gone & ~self._silent).any()):
            silence(optimizer, gone)
            self._silent = gone

    def state_dict(self) -> dict[str, Tensor]:
        return {"at": self.at, "last": self.last}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.at.copy_(state["at"])
        self.last.copy_(state["last"])
        self._any = bool(self.gone.any())
