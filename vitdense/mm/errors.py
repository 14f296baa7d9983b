"""The error of everything a user can mend in a config, data set or option."""


class ConfigError(ValueError):
    """An error in a config, data set or option; the message says what was expected and how to fix it."""
