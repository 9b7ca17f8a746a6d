"""The KV configuration: values, limits, and its stored form."""

import pytest

from gateway.config.limits import NamesrvLimits
from gateway.namesrv.kv_config import KvConfig
from remoting.errors import RequestError


def test_put_get_delete() -> None:
    kv = KvConfig()
    assert (kv.get("n", "k"), kv.namespace_values("n")) == (None, None)
    kv.put("n", "k", "v")
    kv.put("n", "k", "w")
    assert (kv.get("n", "k"), kv.namespace_values("n")) == ("w", {"k": "w"})
    kv.delete("n", "k")
    kv.delete("m", "k")
    assert (kv.get("n", "k"), kv.namespace_values("n"), kv.namespace_values("m")) == (None, {}, None)


def test_the_stored_form_is_official() -> None:
    kv = KvConfig()
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert kv.encoder()() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    earlier = kv.encoder()
    kv.delete("ORDER_TOPIC_CONFIG", "T")
    assert kv.encoder()() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}'
    assert b"broker-a:4" in earlier(), "a thread encodes a copy"


def test_a_file_the_official_namesrv_wrote() -> None:
    kv = KvConfig(b'{"configTable":{"n":{"k":"v\xe4\xb8\xad"}}}')
    assert kv.get("n", "k") == "v中"


def test_values_of_a_file_that_are_not_text() -> None:
    stored = b'{"configTable":{"n":{"a":null,"b":1,"c":true,"d":{"e":[2]},"f":1e4,5:"g"},6:{}}}'
    kv = KvConfig(stored)
    assert kv.namespace_values("n") == {"b": "1", "c": "true", "d": '{"e":[2]}', "f": "10000.0", "5": "g"}
    assert kv.namespace_values("6") == {}
    assert KvConfig(kv.encoder()()).namespace_values("n") == kv.namespace_values("n")


@pytest.mark.parametrize("data", [b"junk", b"[]", b'{"configTable":[]}', b'{"configTable":{"n":3}}', b"{}"])
def test_a_damaged_file_is_not_taken_for_an_empty_one(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        KvConfig(data)


def test_an_empty_file_is_empty() -> None:
    assert KvConfig(b"").namespace_values("n") is None


def test_returned_values_are_a_copy() -> None:
    kv = KvConfig()
    kv.put("n", "k", "v")
    held = kv.namespace_values("n")
    assert held is not None
    held["k"] = "changed"
    assert kv.get("n", "k") == "v"


def limited(entries: int = 10_000, size: int = 1 << 24) -> KvConfig:
    kv = KvConfig()
    kv.limits = NamesrvLimits(max_kv_entries=entries, max_kv_bytes=size)
    return kv


def refusal(kv: KvConfig, *arguments: str) -> str:
    before = kv.encoder()()
    with pytest.raises(RequestError) as error:
        kv.put(*arguments)
    assert error.value.code == 1
    assert kv.encoder()() == before
    return str(error.value.remark)


def test_entries_are_limited_and_namespaces_count_too() -> None:
    kv = limited(entries=3)
    kv.put("n", "a", "1")
    kv.put("n", "b", "1")
    assert "maxKvEntries is 3: raise it" in refusal(kv, "n", "c", "1")
    assert "maxKvEntries" in refusal(kv, "m", "a", "1")
    kv.put("n", "a", "2")
    kv.delete("n", "b")
    kv.delete("n", "b")
    assert "maxKvEntries" in refusal(kv, "m", "a", "1"), "a namespace and its first key are two entries"
    kv.put("n", "c", "1")
    assert kv.namespace_values("n") == {"a": "2", "c": "1"}


def test_an_emptied_namespace_goes_on_counting() -> None:
    kv = limited(entries=10)
    for number in range(9):
        kv.put(f"n{number}", "k", "v")
        kv.delete(f"n{number}", "k")
    assert "maxKvEntries" in refusal(kv, "n9", "k", "v")


def test_bytes_are_limited_and_a_smaller_value_always_fits() -> None:
    kv = limited(size=10)
    kv.put("n", "k", "1234567")
    assert "maxKvBytes is 10: raise it" in refusal(kv, "n", "k", "123456789")
    assert "maxKvBytes" in refusal(kv, "n", "l", "12")
    assert "maxKvBytes" in refusal(kv, "n", "k", "中中中")
    kv.limits = NamesrvLimits(max_kv_bytes=5)
    kv.put("n", "k", "123456")
    kv.delete("n", "k")
    kv.put("n", "k", "123")


def test_stored_entries_count_and_may_exceed_the_limits() -> None:
    kv = KvConfig(b'{"configTable":{"n":{"a":"1","b":"2"}}}')
    kv.limits = NamesrvLimits(max_kv_entries=1, max_kv_bytes=1)
    assert "the KV configuration has 3 entries" in refusal(kv, "n", "c", "1")
    kv.put("n", "a", "3")
    assert kv.get("n", "a") == "3"


def test_half_a_surrogate_pair_does_not_poison_the_file() -> None:
    kv = KvConfig()
    kv.put("n", "k\ud800", "v\udc00")
    assert KvConfig(kv.encoder()()).namespace_values("n") == {"k?": "v?"}
