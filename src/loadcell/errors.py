"""The two ways loadcell gives up: your input is wrong, or the world broke.

What a server does wrong while it is measured is neither: it is data, and stands in the records.
"""


class LoadcellError(Exception):
    """Base of everything raised on purpose; its text is one line for the user."""

    exit_code = 1


class UserError(LoadcellError):
    """The input cannot be used. The text names the flag or key, the value, and what to do."""

    exit_code = 2


class EnvironmentFailure(LoadcellError):
    """The input is right but this machine or the service cannot do it (disk full, port taken, worker lost)."""

    exit_code = 1
