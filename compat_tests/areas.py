"""The areas of the protocol that cases are sorted into. It needs no other module, as commands list the areas."""

from collections.abc import Mapping
from typing import Final

AREAS: Final[Mapping[str, str]] = {
    "clients": "Stock programs, unmodified",
    "send": "Sending",
    "batch": "Batches",
    "bodies": "Bodies: none, large, compressed",
    "consume": "Consuming: push, lite pull, broadcast, pause",
    "from": "Where a new group begins",
    "ordered": "Ordered: queue choice, locks, orderly listeners",
    "retry": "Retry and dead letters",
    "transactions": "Transactions",
    "delay": "Delay levels",
    "timer": "Timer messages and recall",
    "filter": "Filters: tags and SQL92",
    "pop": "POP consumption",
    "reply": "Request and reply",
    "trace": "Message trace",
    "namespace": "Namespaces and unit mode",
    "pull": "Pulling",
    "offsets": "Offsets: commit, search, reset, clone",
    "client": "Clients: heartbeats, notices, what is asked of them",
    "query": "Message queries",
    "admin": "Administration of topics and groups",
    "namesrv": "Name server",
    "wire": "The protocol on the wire",
    "grpc": "gRPC: 5.x clients",
    "restart": "Restart and SIGKILL",
}
"""Areas of the protocol in the order of the table, each with its heading."""
