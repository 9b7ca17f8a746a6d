"""Keeps what other servers know, such as topics: loaded when first needed, refreshed while it is used, and bounded.

A reader has a name loaded with `ensure`, which waits the first time only, and reads it with `get`. What is older than
``max_age_s`` is loaded again in the background, so readers never wait for a refresh, and keep the last content while
the servers do not answer.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import trio

from codec.java_numbers import quoted
from remoting.eager import enter_task
from remoting.errors import REQUEST_FAILURES, RemotingClosed

log = logging.getLogger(__name__)

Content = TypeVar("Content")

MAX_AGE_S: Final = 20.0
"""Time after which content is loaded again. Source: topicRouteServiceCacheRefreshSeconds and its like, 5.4.0."""
MAX_UNUSED_S: Final = 300.0
"""Time after which unused content is not trusted any more. Source: topicRouteServiceCacheExpiredSeconds, 5.4.0."""
MAX_MISSING_AGE_S: Final = 1.0
"""Time for which a name that does not exist is believed not to."""
RETRY_S: Final = 1.0
"""Least time between two refreshes of one name, so that failing requests do not cause as many of them."""
MAX_ENTRIES: Final = 20_000
"""Source: topicRouteServiceCacheMaxNum, 5.4.0."""


@dataclass(slots=True)
class CacheEntry(Generic[Content]):
    """The content of one name, None if there is no such thing. Times are those of `trio.current_time`."""

    content: Content | None
    loaded_s: float
    refresh_s: float
    """Time from which it is loaded again when it is used."""


@dataclass(slots=True)
class Loading:
    """A load in progress, for which any number of readers wait."""

    started_s: float
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


class LoadingCache(Generic[Content]):
    """The content of names, as ``load`` returns it: None for a name that does not exist.

    ``load`` gets the name, and the further arguments of the `ensure` that caused it. It may raise `REQUEST_FAILURES`;
    any other exception is a RemotingClosed to readers.
    """

    def __init__(
        self,
        kind: str,
        nursery: trio.Nursery,
        load: Callable[..., Awaitable[Content | None]],
        *,
        max_age_s: float = MAX_AGE_S,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._kind = kind
        self._nursery = nursery
        self._load = load
        self._max_age_s = max_age_s
        self._max_entries = max_entries
        self._entries: OrderedDict[str, CacheEntry[Content]] = OrderedDict()
        self._loading: dict[str, Loading] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Content | None:
        """Return the content of a name; None if there is none, or it was not loaded."""
        entry = self._entries.get(name)
        return None if entry is None else entry.content

    def age_s(self, name: str) -> float:
        """Return the time since the content of a name was asked for; infinity if it was not loaded."""
        entry = self._entries.get(name)
        return math.inf if entry is None else trio.current_time() - entry.loaded_s

    def contents(self) -> Iterator[Content]:
        """Iterate over everything that is trusted without asking for it again."""
        oldest_s = trio.current_time() - MAX_UNUSED_S
        for entry in self._entries.values():
            if entry.content is not None and entry.loaded_s > oldest_s:
                yield entry.content

    async def ensure(self, name: str, *arguments: Any) -> None:
        """Make sure that the content of a name can be read. Raises what its first load raises."""
        entry = self._entries.get(name)
        if entry is not None and self._is_usable(name, entry, arguments):
            return
        await enter_task()
        await self.reload(name, *arguments)

    def _is_usable(self, name: str, entry: CacheEntry[Content], arguments: tuple[Any, ...]) -> bool:
        self._entries.move_to_end(name)
        now_s = trio.current_time()
        if entry.content is None:
            return now_s - entry.loaded_s < MAX_MISSING_AGE_S
        if now_s >= entry.refresh_s and name not in self._loading:
            self._begin(name, arguments)
        return now_s - entry.loaded_s < MAX_UNUSED_S

    async def reload(self, name: str, *arguments: Any) -> None:
        """Load a name again and wait for it, together with others who do so. Raises what the load raises."""
        loading = self._loading.get(name) or self._begin(name, arguments)
        await loading.done.wait()
        if loading.error is not None:
            raise loading.error

    def expire(self, name: str) -> None:
        """Have a name loaded again when it is used next, unless that was done just now."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.refresh_s = min(entry.refresh_s, entry.loaded_s + RETRY_S)

    def _begin(self, name: str, arguments: tuple[Any, ...]) -> Loading:
        # A task of its own: a reader that gives up must not end the load for the others.
        loading = self._loading[name] = Loading(trio.current_time())
        self._nursery.start_soon(self._run, name, loading, arguments)
        return loading

    async def _run(self, name: str, loading: Loading, arguments: tuple[Any, ...]) -> None:
        try:
            content = await self._load(name, *arguments)
        except REQUEST_FAILURES as error:
            log.info("cannot be loaded", extra=self._describe(name, error))
            self._note_failure(name, loading, error)
        except Exception as error:
            # What other servers answer must not end this one: its nursery runs as long as the front.
            log.exception("cannot be loaded", extra=self._describe(name, error))
            text = f"{self._kind} {quoted(name)!r} cannot be loaded: {type(error).__name__}: {error}"
            self._note_failure(name, loading, RemotingClosed(text))
        else:
            # As old as the request: what it says may have changed since.
            self._keep(name, CacheEntry(content, loading.started_s, loading.started_s + self._max_age_s))
        finally:
            self._loading.pop(name, None)
            loading.done.set()

    def _describe(self, name: str, error: Exception) -> dict[str, str]:
        return {"kind": self._kind, "name_": quoted(name), "reason": str(error)}

    def _note_failure(self, name: str, loading: Loading, error: Exception) -> None:
        loading.error = error
        entry = self._entries.get(name)
        if entry is not None:
            entry.refresh_s = trio.current_time() + RETRY_S

    def _keep(self, name: str, entry: CacheEntry[Content]) -> None:
        self._entries[name] = entry
        self._entries.move_to_end(name)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
