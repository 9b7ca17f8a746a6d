"""The allocator's setting is taken where there is one, and no harm is done elsewhere."""

import ctypes
import mmap
import platform
import subprocess
import sys

import pytest

from gateway.runtime import allocator
from remoting.tests.virtual import virtual


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_glibc_takes_it():
    assert allocator.give_back_large_blocks()


@pytest.mark.parametrize("problem", [OSError("no library"), AttributeError("no mallopt")])
def test_other_libraries_are_left_alone(monkeypatch, problem):
    def missing(_):
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not allocator.give_back_large_blocks()


def test_free_memory_of_the_heap_is_given_back():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    script = """
import gc
from gateway.runtime.allocator import give_back_free_memory, give_back_large_blocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

give_back_large_blocks()
pins = []
blocks = []
for number in range(2000):
    blocks.append(bytes(100_000))
    if not number % 50:
        pins.append(bytes(5000))
full = resident()
blocks.clear()
give_back_free_memory()
print(full - resident())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100 << 20


class FakeHeap:
    """A process of a given size, of which some bytes are free and can be given back."""

    def __init__(self, resident: int, free: int) -> None:
        self.resident, self.free, self.trims = resident, free, 0

    def give_back(self) -> None:
        self.trims += 1
        self.resident -= self.free

    def trimmer(self) -> allocator.HeapTrimmer:
        async def run_now(work):
            return work()

        return allocator.HeapTrimmer(
            16, lambda: self.free, lambda: self.resident, self.give_back, run_blocking=run_now
        )


@virtual
async def test_a_heap_that_has_grown_and_is_free_is_trimmed_once():
    heap = FakeHeap(resident=50, free=10)
    trimmer = heap.trimmer()
    await trimmer.trim()
    heap.resident, heap.free = 150, 80
    await trimmer.trim()
    await trimmer.trim()
    assert (heap.trims, heap.resident) == (1, 70)
    heap.resident = 85
    await trimmer.trim()
    assert heap.trims == 1, "grown by less than the limit"
    heap.resident = 86
    await trimmer.trim()
    assert heap.trims == 2


@virtual
async def test_growth_in_use_is_left_alone():
    heap = FakeHeap(resident=50, free=10)
    trimmer = heap.trimmer()
    for heap.resident in range(50, 500, 50):
        await trimmer.trim()
    assert heap.trims == 0


@virtual
async def test_growth_counts_from_the_smallest_size():
    heap = FakeHeap(resident=100, free=20)
    trimmer = heap.trimmer()
    for heap.resident, trims in ((100, 0), (60, 0), (75, 0), (76, 1)):
        await trimmer.trim()
        assert heap.trims == trims


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_system_tells_the_size():
    # Memory of its own: a block of the heap may lie in what earlier tests left free there, and add nothing.
    before = allocator.measure_anonymous_bytes()
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * (32 << 20))
        assert allocator.measure_anonymous_bytes() - before > 16 << 20


@pytest.mark.parametrize("problem", [OSError("no library"), AttributeError("no mallinfo2")])
def test_without_a_figure_nothing_counts_as_free(monkeypatch, problem):
    def missing(_):
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert allocator.measure_free_heap_bytes() == 0


@virtual
async def test_memory_that_becomes_free_after_a_trim_is_given_back(monkeypatch):
    """A trim in the middle of a burst finds most of its memory in use; when the burst ends, nothing grows."""
    monkeypatch.setattr(allocator, "MIN_FREED_BYTES", 16)
    heap = FakeHeap(resident=50, free=10)
    trimmer = heap.trimmer()
    await trimmer.trim()
    heap.resident, heap.free = 150, 80
    await trimmer.trim()
    assert heap.trims == 1
    for free, trims in ((95, 1), (96, 2), (96, 2), (60, 2), (75, 2), (76, 3)):
        heap.free = free
        await trimmer.trim()
        assert heap.trims == trims
