"""The client with which commands reach the console of a running gateway; the console is in `gateway/http_server`."""
