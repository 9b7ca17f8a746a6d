"""Official Apache RocketMQ jars and how to run Java programs on them.

Not responsible for what those programs do: see `endpoints`, `clients` and `bench` beside this package.
"""

from compat_tests.jars.java import compiled, java_command
from compat_tests.jars.maven import (
    PROFILES,
    Unavailable,
    cache_dir,
    ensure,
    exclusive,
    in_ci,
    tool_environment,
)

__all__ = [
    "PROFILES",
    "Unavailable",
    "cache_dir",
    "compiled",
    "ensure",
    "exclusive",
    "in_ci",
    "java_command",
    "tool_environment",
]
