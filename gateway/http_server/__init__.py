"""An HTTP console for a server process: JSON routes, status, metrics in the format of Prometheus, health probes."""
