"""Settings of listeners and sessions: the table `[listen]`."""

from dataclasses import dataclass
from typing import Final

from codec.hosts import parse_host
from gateway.runtime.listener_tls import ListenTls
from toolkit.settings import SettingsError, setting

NO_PORT: Final = -1
"""The value of `grpc_port` without a gRPC port."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The table `[listen]`: where clients reach the gateway, and how much it buffers for each."""

    host: str = setting("0.0.0.0", "Address to listen on; :: for all IPv6 and IPv4 addresses.")
    advertise: str = setting(
        "auto", "Host that clients are told; auto: the one by which each client reached the gateway."
    )
    namesrv_port: int = setting(
        9876,
        "Port of the first namesrv; the others get the ports after it. 0 takes free ports.",
        low=0,
        high=65535,
    )
    broker_port: int = setting(
        10911,
        "Port of the first broker address; the others follow 10 apart, by broker name and id. 0 takes free ports.",
        low=0,
        high=65535,
    )
    grpc_port: int = setting(
        -1,
        "Port for 5.x clients, which speak gRPC; 8081 is the official Proxy's. 0 takes a free port, -1 opens none.",
        low=-1,
        high=65535,
    )
    grpc_streams: int = setting(
        1_000, "Maximum number of calls of one gRPC connection in progress.", low=1, high=100_000
    )
    grpc_forward_to: str = setting(
        "",
        "Address (host:port) of the primary's own Proxy, where that must stay in the path: calls at grpc_port are "
        "passed on to it, counted and captured, but neither mirrored nor moved. Its TLS is set in [primary.tls]. "
        "Empty: the gateway answers them itself.",
    )
    ports: dict[str, int] = setting(
        dict,
        'Ports for single addresses of the primary: {"10.0.0.1:10911" = 20911}; broker_port applies to all others.',
    )
    ports_file: str = setting(
        "",
        "File that stores the ports assigned from `broker_port` on, so that each address has the same port after a "
        "restart. Empty keeps them in memory only, and a restart assigns them anew.",
    )
    vip: bool = setting(
        True,
        "Also listen on each broker's port minus 2, for clients with vipChannelEnabled. Those of com.alibaba.rocketmq "
        "3.x have it on by default and cannot send without this port. Its clients are connected to the broker's main "
        "port.",
    )
    refresh_s: float = setting(5.0, "Seconds between look-ups of the primary's brokers.", low=0.05, high=3600)
    broker_addresses: int = setting(
        256,
        "Maximum number of broker addresses with a listener. Clients see further ones as the primary names them, and "
        "bypass the gateway.",
        low=1,
        high=4096,
    )
    forget_s: float = setting(
        600.0,
        "Seconds after which the listener of a broker that the primary no longer names is closed. Its port stays "
        "reserved for it.",
        low=1,
        high=86_400,
    )
    connections: int = setting(
        20_000,
        "Maximum number of client connections of all listeners together; more are closed at once.",
        low=1,
    )
    connections_per_address: int = setting(
        10_000,
        "Maximum number of client connections from one address, of all listeners together; more are closed at once. "
        "0: no limit.",
        low=0,
        high=1_000_000,
    )
    frame_bytes: int = setting(
        16 * MIB,
        "Largest frame passed on, including its length prefix; the default is the official limit.",
        low=1024,
    )
    read_bytes: int = setting(256 * 1024, "Maximum number of bytes per read.", low=4096)
    buffered_bytes: int = setting(
        1 * MIB,
        "Unsent bytes in one direction of a session above which nothing more is read for it.",
        low=4096,
    )
    buffered_total_bytes: int = setting(
        1024 * MIB,
        "Bytes buffered for all clients together; above it the clients with the most are disconnected.",
        low=1 * MIB,
    )
    unfinished_total_bytes: int = setting(
        256 * MIB,
        "Bytes of unfinished frames of all clients and upstream connections together; above it the clients with the "
        "largest are disconnected.",
        low=1 * MIB,
    )
    remembered: int = setting(
        10_000,
        "Maximum number of requests per connection that are remembered until they are answered, if they are observed.",
        low=1,
    )
    remembered_bytes: int = setting(
        32 * MIB, "Maximum bytes of these requests; the oldest are given up for new ones.", low=1024
    )
    remembered_s: float = setting(
        180.0, "Seconds after which an unanswered request is forgotten; its connection stays open.", low=1
    )
    connect_s: float = setting(3.0, "Seconds within which the primary must accept a connection.", low=0.1)
    stall_s: float = setting(
        10.0,
        "Seconds for which a target that accepts no more directed requests may block a client. After that the client's "
        "connection is closed, so that its traffic with the primary continues over a new one.",
        low=0.1,
    )
    linger_s: float = setting(
        5.0,
        "Seconds within which bytes received before one end closed are still delivered to the other end.",
        low=0,
    )
    tls: ListenTls = setting(ListenTls, "TLS on the gateway's own listeners.")
    drain_s: float = setting(5.0, "Seconds in which answers may still arrive after SIGTERM.", low=0)

    def __post_init__(self) -> None:
        if not self.grpc_forward_to:
            return
        try:
            parse_host(self.grpc_forward_to)
        except ValueError as error:
            raise SettingsError(f"listen.grpc_forward_to: {error}") from error
        if self.grpc_port == NO_PORT:
            raise SettingsError(
                "listen.grpc_forward_to: there is no port whose calls are forwarded; set listen.grpc_port as well"
            )
