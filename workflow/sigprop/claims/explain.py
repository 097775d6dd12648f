"""What would change a verdict: how far each checked number is from its bound, and in what."""

import math
import re

from sigprop.claims.rules import Part

_BOUND = re.compile(r"([<>])=? ?([-+.\de]+)")


def distance(part: Part) -> str:
    """One sentence on how far `part` is from another verdict; empty where it decides nothing.

    Distances are from the end of the interval to the bound, also in half-widths of the interval.
    The number of samples that would narrow an undecided interval enough takes the value as it is
    and the width as n^(-1/2).
    """
    bounds = _bounds(part)
    if part.verdict in ("reported", "not run") or bounds == (None, None):
        return ""
    if not all(map(math.isfinite, (part.value, part.low, part.high))):
        return "a number is missing, so nothing can be decided"
    if part.low == part.high:
        room, bound = min(_rooms(bounds, part.value, part.value))
        where = "inside" if room >= 0 else "beyond"
        return f"without an interval, {abs(room):.2g} {where} its bound {bound:.4g}"
    half = max(part.value - part.low, part.high - part.value)
    if part.verdict == "reproduced":
        room, bound = min(_rooms(bounds, part.low, part.high))
        return (
            f"it holds until the interval crosses {bound:.4g}, {room:.2g} away "
            f"({room / half:.2g} half-widths)"
        )
    if part.verdict == "not reproduced":
        # From the end of the interval that lies nearest to what is asked.
        gap, bound = max((-room, b) for room, b in _rooms(bounds, part.high, part.low) if room <= 0)
        return (
            f"the nearer end lies {gap:.2g} beyond {bound:.4g} ({gap / half:.2g} half-widths); "
            "more of the same samples would only make it surer"
        )
    room, bound = min(_rooms(bounds, part.value, part.value), key=lambda pair: abs(pair[0]))
    if room == 0:
        return f"the value lies on its bound {bound:.4g}, and no number of samples decides that"
    towards = "reproduced" if room > 0 else "not reproduced"
    needed = part.n * (half / abs(room)) ** 2
    rounded = round(needed, 1 - math.floor(math.log10(needed)))
    return (
        f"the interval straddles {bound:.4g}; if the value stays, about {rounded:.0f} "
        f"samples instead of {part.n} would make it {towards}"
    )


def _bounds(part: Part) -> tuple[float | None, float | None]:
    """Least and most that is asked for, from the words where the rule gave no numbers."""
    least, most = part.least, part.most
    if least is None and most is None and (found := _BOUND.fullmatch(part.asked)):
        bound = float(found[2])
        least, most = (bound, None) if found[1] == ">" else (None, bound)
    return least, most


def _rooms(
    bounds: tuple[float | None, float | None], low: float, high: float
) -> list[tuple[float, float]]:
    """(distance to the bound, positive inside, and the bound) for each bound that is asked for."""
    least, most = bounds
    rooms = [] if least is None else [(low - least, least)]
    return rooms if most is None else [*rooms, (most - high, most)]
