"""The error of everything that a user can fix in a config, data set or option."""

from vitdense.errors import OptionError


class ConfigError(OptionError):
    """An error in a config, data set or option; the message says what was expected and how to fix it."""
