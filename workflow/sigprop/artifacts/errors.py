"""What a person, not a programmer, should read: the one exception, and a hint."""

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: the message is one line that names the field, the value and the fix."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or an empty string."""
    names = list(known)
    padded = re.sub(r"\d+$", lambda digits: digits[0].zfill(2), word)  # fig09 for fig9
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    close = [padded] if padded in names else close
    return f"; did you mean '{close[0]}'?" if close else ""
