import pytest

from gateway.shadow.exchange import Side
from gateway.shadow.mirror.spill import MAGIC, SpillDamaged, SpillFiles, SpillFull, decode, encode
from gateway.shadow.tests.exchanges import exchange, sent


def same(one, other):
    names = [name for name in one.__slots__ if name != "__dict__"]
    return [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(
    "each",
    [sent("orders"), exchange(37, b"request", None, side=Side.TARGET), exchange(39, b"r", b"", reverse=True)],
)
def test_an_exchange_comes_back_as_it_was(each):
    assert same(decode(encode(each)), each)


def files(tmp_path, limit=10_000, size=100):
    made = SpillFiles(str(tmp_path / "s"), limit, size)
    made.clear()
    return made


def test_records_come_back_in_order_and_files_go_when_they_were_read(tmp_path):
    queue = files(tmp_path)
    written = [b"record %d" % number for number in range(50)]
    for start in range(0, 50, 5):
        queue.append(written[start : start + 5])
    read = []
    while payloads := queue.read(30):
        read += payloads
    assert read == written
    assert list((tmp_path / "s").iterdir()) == []
    assert queue.size_bytes == 0


def test_reading_and_writing_in_turns(tmp_path):
    queue = files(tmp_path)
    queue.append([b"a", b"b"])
    assert queue.read(1) == [b"a"]
    queue.append([b"c"])
    assert queue.read(100) == [b"b", b"c"]
    queue.append([b"d"])
    assert queue.read(100) == [b"d"]
    assert queue.read(100) == []


def test_the_limit_holds(tmp_path):
    queue = files(tmp_path, limit=100)
    queue.append([b"x" * 50])
    with pytest.raises(SpillFull):
        queue.append([b"x" * 50])
    assert queue.read(1000) == [b"x" * 50]
    queue.append([b"y" * 50])


def test_damage_is_found_and_the_files_after_it_are_read(tmp_path):
    queue = files(tmp_path, size=60)
    queue.append([b"good", b"bad", b"lost"])
    queue.append([b"x" * 60])
    queue.append([b"next"])
    first = min((tmp_path / "s").iterdir())
    data = bytearray(first.read_bytes())
    data[len(MAGIC) + 8 + 4 + 8] ^= 1
    first.write_bytes(data)
    assert queue.read(1000) == [b"good"]
    with pytest.raises(SpillDamaged) as damage:
        queue.read(1000)
    assert damage.value.lost >= 2
    assert queue.read(1000)[-1] == b"next"


def test_a_file_that_is_gone_is_damage_too(tmp_path):
    queue = files(tmp_path)
    queue.append([b"a", b"b"])
    min((tmp_path / "s").iterdir()).unlink()
    with pytest.raises(SpillDamaged, match="2 exchanges are lost"):
        queue.read(10)
    assert queue.read(10) == []


def test_what_an_earlier_run_left_is_deleted(tmp_path):
    files(tmp_path).append([b"old"])
    again = SpillFiles(str(tmp_path / "s"), 1000, 100)
    assert again.clear() == 1
    assert again.read(10) == []
