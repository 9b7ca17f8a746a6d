import pytest
import trio

from gateway.runtime.parallel import process_in_parallel
from remoting.tests.virtual import virtual


@virtual
async def test_items_are_processed_in_order_a_few_at_a_time():
    started, under_way, most = [], 0, 0

    async def work(item):
        nonlocal under_way, most
        started.append(item)
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1

    began_s = trio.current_time()
    await process_in_parallel(range(10), work, 4)
    assert sorted(started) == list(range(10))
    assert most == 4
    assert trio.current_time() - began_s == 3


@virtual
@pytest.mark.parametrize("items", [[], ["one"]])
async def test_few_items(items):
    done = []

    async def work(item):
        done.append(item)

    await process_in_parallel(items, work, 4)
    assert done == items


@virtual
async def test_an_exception_ends_all():
    done = []

    async def work(item):
        if item == 1:
            raise ValueError("defect")
        await trio.sleep(1)
        done.append(item)

    with pytest.RaisesGroup(ValueError):
        await process_in_parallel(range(10), work, 4)
    assert done == []
