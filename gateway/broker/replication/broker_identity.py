"""The identity of a broker at its controllers, in the official files `brokerIdentity` and `brokerIdentity-temp`.

A controller gives each replica of a broker name an id, once and for all. The id is taken in three steps, and a crash
after each of them is harmless:

1. The id that would be the next one is written to the temporary file, together with a check code.
2. The controller is asked for that id. It gives it to the first check code that comes, and again to the same one.
3. The id is written to the file, and the temporary file is deleted.

A store that is copied to another machine has the identity as well: two processes then claim to be the same replica.

Source: BrokerMetadata and TempBrokerMetadata, 5.4.0. Deviation: a file that cannot be read, or that is of another
broker name, stops the registration; the official broker applies for a new id in the first case.
"""

import os
from dataclasses import dataclass
from typing import Final, Protocol

from codec.java_numbers import parse_integer_or

FILE_NAME: Final = "brokerIdentity"
APPLICATION_FILE_NAME: Final = "brokerIdentity-temp"
_SEPARATOR: Final = "#"


class IdentityFiles(Protocol):
    """The part of the file system that an identity needs."""

    def read_small(self, path: str) -> bytes | None:
        """Return the whole file, None without one."""

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        """Replace the file atomically and durably."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""


class UnusableIdentity(Exception):
    """The file does not say which replica this broker is. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Application:
    """An id that this broker applies for, and the code that shows that it is the one that applied."""

    broker_id: int
    check_code: str


class BrokerIdentity:
    """The files of one broker, in the root of its store. All methods block; those that write raise OSError, StoreFull.

    Reading raises UnusableIdentity.
    """

    def __init__(self, files: IdentityFiles, root: str, cluster: str, broker_name: str) -> None:
        self._files = files
        self._path = os.path.join(root, FILE_NAME)
        self._application_path = os.path.join(root, APPLICATION_FILE_NAME)
        self._cluster = cluster
        self._broker_name = broker_name

    def read(self) -> int | None:
        """Return the id of this broker; None if it has none yet."""
        fields = self._read(self._path, 3)
        return None if fields is None else self._parse_id(self._path, fields[2])

    def read_application(self) -> Application | None:
        """Return the id that this broker applied for before it ended; None if it did not."""
        fields = self._read(self._application_path, 4)
        if fields is None:
            return None
        return Application(self._parse_id(self._application_path, fields[2]), fields[3])

    def write_application(self, application: Application) -> None:
        """Remember an id before the controller is asked for it."""
        fields = (str(application.broker_id), application.check_code)
        self._write(self._application_path, fields)

    def write(self, broker_id: int) -> None:
        """Keep the id that the controller gave."""
        self._write(self._path, (str(broker_id),))
        self._files.delete(self._application_path)

    def withdraw_application(self) -> None:
        """Forget an id that the controller gave to another broker."""
        self._files.delete(self._application_path)

    def _read(self, path: str, count: int) -> list[str] | None:
        data = self._files.read_small(path)
        if data is None or not data.strip():
            return None
        fields = data.decode(errors="replace").strip().split(_SEPARATOR)
        if len(fields) != count:
            raise UnusableIdentity(
                f"{path} cannot be read. Restore it; or delete it, and this broker registers as a further replica"
            )
        if fields[:2] != [self._cluster, self._broker_name]:
            raise UnusableIdentity(
                f"{path} is of the broker {fields[1]} of the cluster {fields[0]}, not of {self._broker_name} of "
                f"{self._cluster}. Correct brokerName and brokerClusterName, or use another storePathRootDir"
            )
        return fields

    def _parse_id(self, path: str, text: str) -> int:
        broker_id = parse_integer_or(text, 0)
        if broker_id <= 0:
            raise UnusableIdentity(f"{path} has {text!r} instead of an id. Restore the file")
        return broker_id

    def _write(self, path: str, fields: tuple[str, ...]) -> None:
        self._files.write_small(path, _SEPARATOR.join((self._cluster, self._broker_name, *fields)).encode())
