"""Asks a server for its metrics once a second while a load runs, as Prometheus would, only more often."""

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from compat_tests.endpoints import Endpoint
from compat_tests.endpoints.ours import OursEndpoint
from tools.bench.loads import LoadFailed

SCRAPE_INTERVAL_S: Final = 1.0
SCRAPE_TIMEOUT_S: Final = 10.0


def metrics_url(endpoint: Endpoint) -> str | None:
    """Return the address of the metrics of a server of ours that was started with an HTTP port, None for others."""
    http = endpoint.ready.get("http") if isinstance(endpoint, OursEndpoint) else None
    return f"http://{http}/metrics" if http else None


class Scraper:
    """Scrapes in a thread. `durations_s` has the duration of each scrape in seconds, `failure` what ended them."""

    def __init__(self, url: str, interval_s: float) -> None:
        self._url = url
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.durations_s: list[float] = []
        self.failure = ""

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> dict[str, float]:
        """Stop, and return the number of scrapes and their median duration. Raises LoadFailed if one failed."""
        self._stop.set()
        self._thread.join()
        if self.failure:
            raise LoadFailed(f"{self._url} could not be scraped: {self.failure}")
        return {"scrapes": len(self.durations_s), "scrape_ms": median(self.durations_s) * 1000}

    def _run(self) -> None:
        while True:
            begin_s = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=SCRAPE_TIMEOUT_S) as answer:
                    answer.read()
            except OSError as error:
                self.failure = str(error)
                return
            self.durations_s.append(time.monotonic() - begin_s)
            if self._stop.wait(max(0.0, begin_s + self._interval_s - time.monotonic())):
                return


@contextmanager
def scraped(
    url: str | None, figures: dict[str, float], interval_s: float = SCRAPE_INTERVAL_S
) -> Iterator[None]:
    """Scrape during the block, and add what came of it to ``figures``; without an address nothing happens."""
    if url is None:
        yield
        return
    scraper = Scraper(url, interval_s)
    scraper.start()
    try:
        yield
    finally:
        figures |= scraper.finish()
