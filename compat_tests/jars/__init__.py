"""Fetches the official Apache RocketMQ jars and builds command lines for Java programs that use them.

The programs themselves live in the packages `endpoints`, `clients` and `bench`.
"""

from compat_tests.jars.java import compile_jar, java_command
from compat_tests.jars.maven import (
    PROFILES,
    Unavailable,
    cache_dir,
    fetch_jars,
    find_program,
    in_ci,
    lock_file,
    tool_environment,
)

__all__ = [
    "PROFILES",
    "Unavailable",
    "cache_dir",
    "compile_jar",
    "fetch_jars",
    "find_program",
    "in_ci",
    "java_command",
    "lock_file",
    "tool_environment",
]
