"""The exceptions that are answers: their text is shown to the user as it stands, without a traceback."""


class UserError(Exception):
    """A user's mistake. The message names the thing, its value, and what would be right."""


class RequestErrors(UserError):
    """All that is wrong with one request, reported together.

    Attributes:
        problems: one sentence each, in the order in which they should be read.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class Unsupported(Exception):
    """Raised by an experiment whose cell cannot be run as configured. The message is the reason in its record."""


class Preempted(Exception):
    """Raised by an experiment that was asked to end early and has saved its state. The message says what it saved."""
