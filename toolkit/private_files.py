"""Creates files and directories that other accounts of the machine cannot read, whatever the umask is.

For files that hold messages outside a store: spill queues and captures. What exists already keeps its mode, so an
operator who wants to share a directory creates it.
"""

import os
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700


def open_private(path: str, flags: int) -> int:
    """Open a file and return its descriptor; one that is created is its owner's alone. An opener for `open`."""
    return os.open(path, flags, PRIVATE_FILE)


def make_private_directories(path: str) -> None:
    """Create a directory and the missing ones above it, each its owner's alone. Raises OSError."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path.rstrip(os.sep))
    for each in reversed(missing):
        try:
            os.mkdir(each, PRIVATE_DIRECTORY)
        except FileExistsError:
            if not os.path.isdir(each):
                raise
