"""The path of clients: listeners, links to upstreams, addresses in answers, TLS."""
