"""The shadow gateway: stands between clients and a RocketMQ cluster, and prepares the move to another cluster.

| room | holds |
|---|---|
| `traffic` | exchanges (a request and its answer), the hub that publishes them, the policy of each request code |
| `clusters` | connections to the two clusters, typed requests, copying of metadata and offsets |
| `console` | the client with which commands reach a running gateway; the console itself is `gateway/http_server` |
| `proxy` | listeners, client sessions, addresses in answers, TLS |
| `grpc_forwarding` | calls of 5.x clients passed on to the primary's own Proxy |
| `mirror` | rules and modes, mirror streams and their backlogs, resending to the target, offsets of the target |
| `replication` | copying queues to a target of ours under the primary's offsets |
| `compare` | comparison of answers field by field, and of stored content queue by queue |
| `capture` | traffic to files and back (file layout: `codec/capture.py`) |
| `cutover` | moving topics and groups, backfill of history |
| `report` | live view and HTML report |
| `commands` | the commands `rmq-gateway shadow`, `capture` and `replay` |

A room imports only rooms above it in this table; `gateway/tests/test_rooms.py` has the exact rules. `server.py` builds
all parts from the configuration in `config.py`.

The first rule: whatever happens to the mirror, the primary's traffic is not affected. Only `proxy` and
`grpc_forwarding` are on its path.
"""
