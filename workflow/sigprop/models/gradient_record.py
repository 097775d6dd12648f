"""What gradient samplers share: the record of weight gradients, and the algebra behind it."""

import torch
from torch import Tensor


class GradientRecord:
    """Squared norms of weight gradients, one entry per product, filled by the backward pass."""

    def __init__(self) -> None:
        self._norms: dict[str, list[Tensor | None]] = {}

    def clear(self) -> None:
        """Forget everything, as after a pass that failed."""
        self._norms = {}

    def open(self, family: str) -> int:
        """A place for one product with the weights of `family`; its number among them."""
        places = self._norms.setdefault(family, [])
        places.append(None)
        return len(places) - 1

    def fill(self, family: str, place: int, norm: Tensor) -> None:
        """Note ||dLoss/dW||^2 (B,). RuntimeError when the place is taken."""
        if self._norms[family][place] is not None:
            raise RuntimeError(
                f"product {place} of family {family!r} was differentiated already: "
                "run the forward pass again before each backward pass"
            )
        self._norms[family][place] = norm

    def take(self) -> dict[str, Tensor]:
        """{family: (products, B) float64} in the order of the forward pass; empties the record.

        RuntimeError when the backward pass has not reached some product.
        """
        norms, self._norms = self._norms, {}
        taken = {}
        for family, places in norms.items():
            found = [norm for norm in places if norm is not None]
            if len(found) < len(places):
                raise RuntimeError(
                    f"{len(places) - len(found)} of {len(places)} products of family {family!r} "
                    "have no gradient: call backward on a loss that depends on all of them, with "
                    "an input that requires grad"
                )
            taken[family] = torch.stack(found)
        return taken


def referred(x: Tensor) -> Tensor:
    """Y_0 = X_0, Y_i = X_i - X_0, (B, r, d)."""
    y = x - x[:, :1]
    y[:, 0] = x[:, 0]
    return y


def triangle(a: Tensor) -> Tensor:
    """R of a QR factorization of a (B, p, r), shape (B, min(p, r), r)."""
    a = a.mT.clone(memory_format=torch.contiguous_format).mT  # LAPACK's order, overwritten
    tau = a.new_empty(a.shape[0], min(a.shape[1:]))
    torch.geqrf(a, out=(a, tau))
    return a[:, : a.shape[2]].triu()


def squared_norm(r_x: Tensor, t: Tensor) -> Tensor:
    """||X^T D||^2 (B,) in float64 from triangles, R^T R = Y Y^T (r, r) and T^T T = D D^T.

    X^T D = Y^T D' with D'_0 = sum_i D_i and D'_i = D_i otherwise, so that with D' = T'^T Q_D^T the
    norm is that of R T'^T: no difference of large numbers when the rows of X are nearly equal and
    those of D add up to nearly nothing.
    """
    t, r_x = t.double(), r_x.double()
    t = torch.cat([t.sum(-1, keepdim=True), t[..., 1:]], dim=-1)
    return (r_x @ t.mT).square().sum((-2, -1))
