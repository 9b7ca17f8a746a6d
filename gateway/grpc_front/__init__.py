"""The gRPC protocol of 5.x clients (service apache.rocketmq.v2.MessagingService), served in front of local brokers.

From the bottom up:

- `messages.proto`, `messages.py`, `message_classes.py`: the protocol's messages;
- `http2_connection.py`: HTTP/2 on one connection; `framing.py`: messages on one of its streams;
- `rpc.py`: one RPC, its metadata, deadline and status;
- `broker_link.py`: the link through which an RPC reaches the handlers of a broker or namesrv;
- `clients.py`: the clients that have reported their settings, and the requests that brokers send them;
- `routes.py`, `sending.py`, `receiving.py`, `transactions.py`, `telemetry.py`: the RPCs, group by group;
- `service.py`: the server that puts them together.

The front holds no rules of a broker. An RPC becomes one or two of the typed requests of `remoting.requests`, which are
passed to the broker's own handlers (`remoting.local_connection`). A receive is a pop with a link of its own, so that
closing the link ends a pop that waits. A client that has reported its settings is registered by heartbeats over a link
that lives as long as the client; a check-back that the broker sends over it becomes a command on the Telemetry stream.
With access control the front checks the RPC's signature, the request carries the verified user, and the broker decides.
`Http2Connection` takes the place of a `FrameConnection` in a `RemotingServer`, so that limits, TLS, idle times and the
stop are those of every port.

Source: the package org.apache.rocketmq.proxy of the official Proxy in local mode, 5.4.0.
"""
