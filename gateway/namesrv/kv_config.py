"""The KV configuration by namespace, stored in kvConfig.json in the official format.

ORDER_TOPIC_CONFIG is used by the route and registration handlers; other namespaces have no meaning here.

Source: KVConfigManager, 5.4.0.
"""

from typing import Protocol

from codec import fastjson

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class TextFile(Protocol):
    """The file of a table: read once, replaced as a whole."""

    def read(self) -> bytes | None:
        """Return the content, None when there is none yet."""
        ...

    def write(self, data: bytes) -> None:
        """Replace the content atomically: after a crash the file has the old or the new content."""
        ...


class KvConfig:
    """All namespaces; without a file they live as long as the process."""

    def __init__(self, file: TextFile | None = None) -> None:
        self._file = file
        self._namespaces: dict[str, dict[str, str]] = _parse(file.read()) if file else {}

    def put(self, namespace: str, key: str, value: str) -> None:
        self._namespaces.setdefault(namespace, {})[key] = value
        self._save()

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value. As in the official namesrv, an empty namespace stays."""
        self._namespaces.get(namespace, {}).pop(key, None)
        self._save()

    def namespace_values(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace, None when it never had one."""
        held = self._namespaces.get(namespace)
        return None if held is None else dict(held)

    def _save(self) -> None:
        if self._file is not None:
            self._file.write(fastjson.dumps({"configTable": self._namespaces}))


def _parse(data: bytes | None) -> dict[str, dict[str, str]]:
    """Parse a stored table. Raises ValueError for any other file, because the next change would overwrite it."""
    if not data:
        return {}
    document = fastjson.loads(data)
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(isinstance(held, dict) for held in table.values()):
        raise ValueError("kvConfig.json holds no configTable")
    return {str(name): {str(key): str(value) for key, value in held.items()} for name, held in table.items()}
