"""Official Apache RocketMQ jars and how to run Java programs on them.

Not responsible for what those programs do: see `endpoints`, `clients` and `bench` beside this package.
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
