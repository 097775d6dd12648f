"""What the loop asks of a source of batches."""

from typing import Any, Protocol


class Data(Protocol):
    """A source of batches that knows its position."""

    def next(self) -> Any:
        """The next batch, on the model's device."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position, in tensors and plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        ...
