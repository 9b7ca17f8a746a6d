"""Takes the output of a broker process apart: whole lines for the log, and the errors that kept it from starting."""

from typing import Final

MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line is cut, so that a process that never ends its line costs no more memory."""
_ERROR_PREFIX: Final = b"Error: "


class LogLines:
    """The output of one process, fed in pieces of any size.

    Lines that start with ``Error:`` are what `run_process` prints when a server cannot start. They are collected in
    ``errors``, because only the supervisor knows whether they end the whole server.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._rest = b""

    def feed(self, data: bytes) -> str:
        """Return the lines that are whole now, as one text to be written at once."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        return self._without_errors(whole + newline)

    def finish(self) -> str:
        """Return the last line when the output has ended, if it had no end."""
        rest, self._rest = self._rest, b""
        return self._without_errors(rest + b"\n") if rest else ""

    def _without_errors(self, lines: bytes) -> str:
        if _ERROR_PREFIX not in lines:
            return lines.decode(errors="replace")
        shown = []
        for line in lines.splitlines(keepends=True):
            if line.startswith(_ERROR_PREFIX):
                self.errors.append(line.removeprefix(_ERROR_PREFIX).decode(errors="replace").strip())
            else:
                shown.append(line)
        return b"".join(shown).decode(errors="replace")
