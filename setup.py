"""Builds the optional C extension; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "rocketmq_native",
            ["native/module.c"],
            # One file for all versions of CPython from 3.11 on.
            py_limited_api=True,
            # Without a compiler everything is installed but this: the Python code does the same.
            optional=True,
            extra_compile_args=["-std=c11", "-O2", "-fno-strict-aliasing", "-fvisibility=hidden"],
        )
    ]
)
