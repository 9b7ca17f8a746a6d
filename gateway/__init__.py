"""The servers: namesrv, broker, command line, and the composition root that builds them."""
