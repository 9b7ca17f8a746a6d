"""A small file that is replaced atomically, with the previous content beside it as .bak."""

import os


class AtomicTextFile:
    """A file that is replaced as a whole. Source: MixAll.string2File, 5.4.0, with a flush to disk before the new
    content takes the name.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """Return the content, or the backup's if the file is missing or empty; None when there is neither."""
        for path in (self.path, self.path + ".bak"):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            if data:
                return data
        return None

    def write(self, data: bytes) -> None:
        """Replace the content. Raises OSError when it cannot be written."""
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        unfinished = self.path + ".tmp"
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(self.path):
            os.replace(self.path, self.path + ".bak")
        os.replace(unfinished, self.path)
