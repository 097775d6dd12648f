"""What a person, not a programmer, should read: the one exception, and a hint."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: the message is one line that names the field, the value and the fix."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
