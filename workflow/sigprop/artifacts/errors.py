"""The one exception that a person, not a programmer, should read."""


class UserError(ValueError):
    """Bad input: the message is one line that names the field, the value and the fix."""
