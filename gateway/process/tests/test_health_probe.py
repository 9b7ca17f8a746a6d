"""The health check of containers, against HTTP servers that are well, unwell and away."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.process.health_probe import main, probe


class Endpoint(BaseHTTPRequestHandler):
    """Answers `/readyz` with a status."""

    status = 200
    path_of_success = "/readyz"

    def do_GET(self):
        self.send_response(self.status if self.path == self.path_of_success else 404)
        self.end_headers()
        self.wfile.write(b"stopping")

    def log_message(self, *values):
        pass


@pytest.fixture
def endpoint():
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_exit_status_tells_whether_the_server_is_ready(endpoint, monkeypatch, capsys):
    monkeypatch.setenv("RMQ_GATEWAY_HTTP_PORT", str(endpoint.server_port))
    assert main([]) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Endpoint, "status", 503)
    assert main([]) == 1
    assert "stopping" in capsys.readouterr().out


def test_a_task_can_be_left_out(endpoint, monkeypatch, capsys):
    monkeypatch.setenv("RMQ_GATEWAY_HTTP_PORT", str(endpoint.server_port))
    monkeypatch.setattr(Endpoint, "path_of_success", "/readyz?exclude=in-sync", raising=False)
    assert main(["--exclude", "in-sync"]) == 0
    assert main([]) == 1


def test_server_that_is_away_is_not_ready(endpoint):
    port = endpoint.server_port
    endpoint.server_close()
    assert "httpPort) cannot be reached" in probe(port)


def test_missing_port_is_named(monkeypatch, capsys):
    monkeypatch.delenv("RMQ_GATEWAY_HTTP_PORT", raising=False)
    assert main([]) == 1
    assert "RMQ_GATEWAY_HTTP_PORT" in capsys.readouterr().out
