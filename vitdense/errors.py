"""The base of this package's errors."""


class OptionError(ValueError):
    """An argument, an option or a file does not fit. The message says what, got, expected and how to fix it."""
