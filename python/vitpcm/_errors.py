"""The exceptions of the package: one family, whose members are also Python's own kinds."""


class Error(RuntimeError):
    """A file or computation that failed; the message names it. All other exceptions of the package derive from it.

    >>> import vitpcm
    >>> try:
    ...     vitpcm.Segmenter("missing.safetensors")
    ... except vitpcm.Error as error:
    ...     print(error)
    missing.safetensors: there is no such file
    """

    __module__ = "vitpcm"


class UsageError(Error, ValueError):
    """An argument whose value does not fit; the message says what was expected."""

    __module__ = "vitpcm"


class WrongTypeError(Error, TypeError):
    """An array of the wrong type; the message says what was expected."""

    __module__ = "vitpcm"


class MissingFileError(Error, FileNotFoundError):
    """A file or folder that does not exist."""

    __module__ = "vitpcm"
