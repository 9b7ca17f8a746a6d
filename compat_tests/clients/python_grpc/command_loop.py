"""Runs operations by commands, one JSON object a line, as ``java/CommandLoop.java`` describes."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Command = dict[str, Any]
Operation = Callable[[Command], Any]
MAX_COMMANDS = 32


def run(operations: dict[str, Operation]) -> None:
    """Run commands of standard input, each in a thread, until it ends; then end this process."""
    answers, sys.stdout = sys.stdout, sys.stderr  # The output of the client must not mix with the answers.
    lock = threading.Lock()

    def answer(command: Command) -> None:
        try:
            result: Command = {"ok": operations[command["op"]](command)}
        except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
            result = {"error": describe_error(error)}
        with lock:
            answers.write(json.dumps({"id": command["id"], **result}) + "\n")
            answers.flush()

    pool = ThreadPoolExecutor(MAX_COMMANDS)
    for line in sys.stdin:
        pool.submit(answer, json.loads(line))
    os._exit(0)  # Threads of the client do not end by themselves.


def describe_error(error: Exception) -> Command:
    """Return what the other side learns of an exception."""
    code = getattr(error, "code", None)
    return {
        "type": type(error).__name__,
        "code": code if isinstance(code, int) else -1,
        "message": f"{type(error).__name__}: {error}",
    }


class Collected:
    """Messages that threads of the client add, and that a command waits for."""

    def __init__(self) -> None:
        self._items: list[Command] = []
        self._changed = threading.Condition()

    def add(self, item: Command) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def wait(self, command: Command) -> list[Command]:
        """Return all items, once there are `count` of them or `timeout` (ms) is over."""
        end = time.monotonic() + command["timeout"] / 1000
        with self._changed:
            while len(self._items) < command["count"] and time.monotonic() < end:
                self._changed.wait(max(0.0, end - time.monotonic()))
            return list(self._items)
