"""The proxy between clients and the primary: listeners, sessions, and addresses rewritten to lead through it.

The walk of one request, from the client's socket to the upstream's:

1. `forwarder.py` opens a listener per namesrv and per broker address (`broker_listeners.py`, `listener_ports.py`).
2. `client_listener.py` accepts the client, dials the upstream, and runs a session between the two.
3. `peer_connection.py` reads when the reactor says that the client's socket is readable.
4. `session_driver.py` passes the bytes to the session, and performs what the session returns. It does all the I/O.
5. `session.py` decides, without I/O: it splits frames (`frame_splitter.py`), reads code and opaque
   (`frame_peek.py`), and asks the hub who is interested in the code and which cluster the request goes to.
6. A request that somebody observes is remembered until its answer comes (`exchange_tracker.py`).
7. `peer_connection.py` writes to the upstream, or buffers while the upstream does not read.
8. The answer comes back through `primary_upstream.py` or `target_upstream.py`; addresses in it become the gateway's
   (`address_rewrite.py`, `address_book.py`), the client gets it, and observers are told of the exchange.

A single frame that nobody needs to see takes a shorter way through step 5, described in `session.py`.
"""
