"""The one exception that programs turn into a one-line message and exit code 2."""


class UserError(ValueError):
    """An error that the user can fix; names the flag or file, what was found and what was expected.

    The message is one line, even if it quotes text of several lines.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
