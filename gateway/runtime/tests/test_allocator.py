"""The allocator's setting is taken where there is one, and no harm is done elsewhere."""

import ctypes
import platform

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
