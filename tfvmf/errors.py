"""The one exception that programs turn into a one-line message and exit code 2."""


class UserError(ValueError):
    """Something the user can fix: names the flag or file, what is wrong, what would be right.

    One line, also where it quotes a library, a file or a name that has several.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
