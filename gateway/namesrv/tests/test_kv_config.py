"""Key-value configuration and its file."""

import pytest

from gateway.namesrv.kv_config import KvConfig


class KeptText:
    """A file in memory that remembers every content it had."""

    def __init__(self, data: bytes | None = None) -> None:
        self.contents = [] if data is None else [data]

    def read(self) -> bytes | None:
        return self.contents[-1] if self.contents else None

    def write(self, data: bytes) -> None:
        self.contents.append(data)


def test_put_get_delete() -> None:
    kv = KvConfig()
    assert (kv.get("n", "k"), kv.namespace_values("n")) == (None, None)
    kv.put("n", "k", "v")
    kv.put("n", "k", "w")
    assert (kv.get("n", "k"), kv.namespace_values("n")) == ("w", {"k": "w"})
    kv.delete("n", "k")
    kv.delete("m", "k")
    assert (kv.get("n", "k"), kv.namespace_values("n"), kv.namespace_values("m")) == (None, {}, None)


def test_the_file_is_official_and_every_change_is_in_it() -> None:
    file = KeptText()
    kv = KvConfig(file)
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert file.contents == [b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}']
    kv.delete("ORDER_TOPIC_CONFIG", "T")
    assert file.contents[-1] == b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}'


def test_a_file_the_official_namesrv_wrote() -> None:
    kv = KvConfig(KeptText(b'{"configTable":{"n":{"k":"v\xe4\xb8\xad"}}}'))
    assert kv.get("n", "k") == "v中"


@pytest.mark.parametrize("data", [b"junk", b"[]", b'{"configTable":[]}', b'{"configTable":{"n":3}}', b"{}"])
def test_a_damaged_file_is_not_taken_for_an_empty_one(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        KvConfig(KeptText(data))


def test_an_empty_file_is_empty() -> None:
    assert KvConfig(KeptText(b"")).namespace_values("n") is None


def test_returned_values_are_a_copy() -> None:
    kv = KvConfig()
    kv.put("n", "k", "v")
    held = kv.namespace_values("n")
    assert held is not None
    held["k"] = "changed"
    assert kv.get("n", "k") == "v"
