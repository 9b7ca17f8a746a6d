"""The KV configuration by namespace: the table and its official JSON form. No method waits or does I/O.

ORDER_TOPIC_CONFIG is used by the route and registration handlers; other namespaces have no meaning here. The file,
kvConfig.json, is written by `gateway.namesrv.text_file`.

Source: KVConfigManager, 5.4.0. Deviation: the number of entries and their size are limited.
"""

from collections.abc import Callable
from functools import partial

from codec import fastjson
from codec.java_numbers import quoted
from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registration import refused

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """All namespaces, loaded from ``stored`` if given. Raises ValueError if that cannot be parsed.

    ``version`` changes with every change of a value.
    """

    def __init__(self, stored: bytes | None = None) -> None:
        self.limits = NamesrvLimits()
        self.version = 0
        self._namespaces = _parse(stored)
        self._entry_count = 0
        self._byte_count = 0
        for namespace, values in self._namespaces.items():
            self._count(1, _size(namespace))
            for key, value in values.items():
                self._count(1, _size(key) + _size(value))

    def _count(self, entries: int, size: int) -> None:
        self._entry_count += entries
        self._byte_count += size

    def put(self, namespace: str, key: str, value: str) -> Callable[[], None]:
        """Set a value, and return a function that takes this back.

        Raises RequestError at a limit, but never for a value that gets smaller.
        """
        namespace, key, value = map(_storable, (namespace, key, value))
        entries_of_namespace = self._namespaces.get(namespace)
        previous = None if entries_of_namespace is None else entries_of_namespace.get(key)
        entries = (entries_of_namespace is None) + (previous is None)
        size = _size(value)
        if previous is None:
            size += _size(key) + (_size(namespace) if entries_of_namespace is None else 0)
        else:
            size -= _size(previous)
        self._check_limits(entries, size)
        self._count(entries, size)
        self.version += 1
        self._namespaces.setdefault(namespace, {})[key] = value
        return partial(
            self._put_back, namespace, key, previous, is_new_namespace=entries_of_namespace is None
        )

    def _put_back(
        self, namespace: str, key: str, value: str | None, *, is_new_namespace: bool = False
    ) -> None:
        """Restore a value, None for none, after a change that could not be stored."""
        values = self._namespaces[namespace]
        for text, change in ((values.pop(key, None), -1), (value, 1)):
            if text is not None:
                self._count(change, change * (_size(key) + _size(text)))
        if value is not None:
            values[key] = value
        elif is_new_namespace and not values:
            del self._namespaces[namespace]
            self._count(-1, -_size(namespace))
        self.version += 1

    def _check_limits(self, entries: int, size: int) -> None:
        if entries > 0 and self._entry_count + entries > self.limits.max_kv_entries:
            raise refused(
                f"the KV configuration has {self._entry_count} entries; maxKvEntries is "
                f"{self.limits.max_kv_entries}: raise it, or delete entries"
            )
        if size > 0 and self._byte_count + size > self.limits.max_kv_bytes:
            raise refused(
                f"the KV configuration has {self._byte_count} bytes and {size} were to be added; maxKvBytes is "
                f"{self.limits.max_kv_bytes}: raise it, or delete entries"
            )

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> Callable[[], None]:
        """Remove a value, and return a function that takes this back. As in the official namesrv, an empty namespace
        stays.
        """
        previous = self._namespaces.get(namespace, {}).pop(key, None)
        if previous is None:
            return lambda: None
        self.version += 1
        self._count(-1, -_size(key) - _size(previous))
        return partial(self._put_back, namespace, key, previous)

    def namespace_values(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace, None when it never had one."""
        values = self._namespaces.get(namespace)
        return None if values is None else dict(values)

    def encoder(self) -> Callable[[], bytes]:
        """Return a function that encodes the present content, for a thread."""
        copied = {namespace: dict(values) for namespace, values in self._namespaces.items()}
        return partial(fastjson.dumps, {"configTable": copied})


def _size(text: str) -> int:
    return len(text.encode())


def _storable(text: str) -> str:
    """Return the text as a file can store it: as in Java, ``?`` replaces half a surrogate pair."""
    return text.encode(errors="replace").decode()


def _parse(data: bytes | None) -> dict[str, dict[str, str]]:
    """Parse a stored table. Raises ValueError for any other content, which the next change would overwrite.

    Values that are not text become their JSON text, although no namesrv writes such values; nulls are left out.
    """
    if not data:
        return {}
    document = fastjson.loads(data, fastjson.MAX_TRUSTED_VALUES)
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ValueError("kvConfig.json holds no configTable")
    namespaces = {}
    for name, values in table.items():
        if not isinstance(values, dict):
            raise ValueError(f"kvConfig.json holds no table for the namespace {quoted(_text(name))}")
        namespaces[_text(name)] = {
            _text(key): _text(value) for key, value in values.items() if value is not None
        }
    return namespaces


def _text(value: object) -> str:
    return _storable(value) if isinstance(value, str) else fastjson.dumps(value).decode()
