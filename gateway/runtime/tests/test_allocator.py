"""The allocator's setting is taken where there is one, and no harm is done elsewhere."""

import ctypes
import platform
import subprocess
import sys

import pytest

from gateway.runtime import allocator


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
