"""Scrapes beside a load: their number and duration, and a server that cannot be scraped."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from tools.bench.loads import LoadFailed
from tools.bench.scraper import scraped


class Metrics:
    """A server that answers with ``status`` and notes the requests."""

    def __init__(self) -> None:
        self.status = 200
        self.seen = threading.Semaphore(0)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"x\n")
                outer.seen.release()

            def log_message(self, *parts: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    thread = threading.Thread(target=metrics.server.serve_forever, args=(0.01,))
    thread.start()
    yield metrics
    metrics.server.shutdown()
    thread.join()
    metrics.server.server_close()


def test_scrapes_are_repeated_during_the_block(metrics: Metrics) -> None:
    figures = {"rate": 1.0}
    with scraped(metrics.url, figures, interval_s=0.01):
        for _ in range(3):
            assert metrics.seen.acquire(timeout=10)
    assert figures["rate"] == 1.0
    assert figures["scrapes"] >= 3
    assert 0 < figures["scrape_ms"] < 10_000


def test_a_server_that_refuses_fails_the_load(metrics: Metrics) -> None:
    metrics.status = 401
    with pytest.raises(LoadFailed, match=r"/metrics could not be scraped: .*401"), scraped(metrics.url, {}):
        assert metrics.seen.acquire(timeout=10)


def test_without_an_address_nothing_is_scraped() -> None:
    figures: dict[str, float] = {}
    with scraped(None, figures):
        pass
    assert figures == {}
