"""The gRPC protocol of 5.x clients (service apache.rocketmq.v2.MessagingService), served in front of local brokers.

From the bottom up:

- `messages.proto`, `messages.py`, `message_classes.py`: the protocol's messages;
- `http2_connection.py`: HTTP/2 on one connection; `framing.py`: messages on one of its streams;
- `rpc.py`: one RPC, its metadata, deadline and status;
- `broker_link.py`: the connection through which an RPC reaches a broker's or namesrv's own handlers;
- `clients.py`: the clients that have told their settings, and what a broker asks of them;
- `routes.py`, `sending.py`, `receiving.py`, `transactions.py`, `telemetry.py`: the RPCs, group by group;
- `service.py`: the server that puts them together.

Source: the package org.apache.rocketmq.proxy of the official Proxy in local mode, 5.4.0.
"""
