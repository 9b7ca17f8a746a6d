"""Creates files and directories that other accounts of the machine cannot read, whatever the umask is.

For files that hold messages outside a store: spill queues and captures. Existing files and directories keep their mode,
so an operator who wants to share a directory creates it beforehand.
"""

import os
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700


def open_private(path: str, flags: int) -> int:
    """Open a file and return its descriptor; a new file is readable by its owner only. An opener for `open`."""
    return os.open(path, flags, PRIVATE_FILE)


def make_private_directories(path: str) -> None:
    """Create a directory and its missing parents, all accessible to their owner only. Raises OSError."""
    missing_directories = []
    while path and not os.path.isdir(path):
        missing_directories.append(path)
        path = os.path.dirname(path.rstrip(os.sep))
    for directory in reversed(missing_directories):
        try:
            os.mkdir(directory, PRIVATE_DIRECTORY)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
