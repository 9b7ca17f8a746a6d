"""The configuration of one process: keys of the namesrv, of connections and of the process, and `ServeConfig`.

`sources.py` fills it from files, environment and flags. The keys of a broker are in `broker.py`; this module hands its
`BrokerConfig` on, because a process is made of both.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.config.auth import AuthConfig
from gateway.config.broker import AUTO, BrokerConfig
from gateway.config.controller import ControllerConfig
from gateway.config.keys import key
from gateway.config.limits import NamesrvLimits
from gateway.config.metrics_export import MetricsExportConfig
from gateway.config.replication import ADDRESS
from gateway.config.store import MIB, StoreSettings
from gateway.config.tls import TlsConfig

if TYPE_CHECKING:
    from remoting.limits import ConnectionLimits

__all__ = [
    "AUTO",
    "TABLES",
    "AuthConfig",
    "BrokerConfig",
    "ControllerConfig",
    "ListenerLimits",
    "NamesrvConfig",
    "ProcessConfig",
    "ProxyConfig",
    "ServeConfig",
    "StoreSettings",
    "TlsConfig",
]

NAMESRV_PORT = 9876
PROXY_PORT = 8081
LOOPBACK, ALL_ADDRESSES = "127.0.0.1", "0.0.0.0"
ADDRESS_OR_AUTO = rf"({AUTO}|{ADDRESS})"


@dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """Source: NamesrvConfig, 5.4.0."""

    listen_port: int = key(
        "listenPort", NAMESRV_PORT, "port for clients and brokers; 0 for a free one", low=0, high=65535
    )
    kv_config_path: str = key(
        "kvConfigPath",
        "~/rocketmq-gateway/namesrv/kvConfig.json",
        "file of the KV configuration",
        path=True,
    )
    config_store_path: str = key(
        "configStorePath",
        "~/rocketmq-gateway/namesrv/namesrv.properties",
        "file for changes made by request",
        path=True,
    )
    order_message_enable: bool = key(
        "orderMessageEnable", False, "whether routes carry the order configuration of their topic", live=True
    )
    return_order_topic_config_to_broker: bool = key(
        "returnOrderTopicConfigToBroker",
        True,
        "whether registering brokers get the order configuration",
        live=True,
    )
    scan_not_active_broker_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        5_000,
        "time between searches for silent brokers",
        low=100,
        high=600_000,
    )
    enable_all_topic_list: bool = key(
        "enableAllTopicList", True, "whether all topics may be listed", live=True
    )
    enable_topic_list: bool = key(
        "enableTopicList", True, "whether topics of a cluster may be listed", live=True
    )
    need_wait_for_service: bool = key(
        "needWaitForService", False, "whether routes are refused for a time after the start", live=True
    )
    wait_seconds_for_service: int = key(
        "waitSecondsForService",
        45,
        "time after the start during which routes are refused, in seconds",
        low=0,
        high=3_600,
        live=True,
    )
    support_acting_master: bool = key(
        "supportActingMaster", False, "whether a replica is shown as master while there is none", live=True
    )
    delete_topic_with_broker_registration: bool = key(
        "deleteTopicWithBrokerRegistration",
        False,
        "whether topics missing from a registration are removed",
        live=True,
    )
    enable_controller: bool = key(
        "enableControllerInNamesrv",
        False,
        "whether the process of the namesrv also runs a controller, at a port of its own",
    )
    config_black_list: str = key(
        "configBlackList",
        "configBlackList;configStorePath;kvConfigPath",
        "keys that cannot be changed by request, separated by ;",
    )
    limits: NamesrvLimits = field(default_factory=NamesrvLimits)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of every listener of the process."""

    frame_bytes: int = key(
        "com.rocketmq.remoting.frameMaxLength",
        16 * MIB,
        "maximum size of a frame, in bytes",
        low=1024,
        high=1024 * MIB,
    )
    header_bytes: int = key(
        "headerMaxLength",
        MIB,
        "maximum size of the header of a frame, in bytes",
        low=256,
        high=16 * MIB,
        unofficial=True,
    )
    json_values: int = key(
        "maxJsonValues",
        100_000,
        "maximum number of values in the JSON body of a request; reading 100,000 takes about 0.1 s",
        low=1_000,
        high=100_000_000,
        unofficial=True,
    )
    output_bytes: int = key(
        "outputHighWaterMark",
        8 * MIB,
        "bytes of unread answers above which a peer's requests wait",
        low=1024,
        high=1024 * MIB,
        unofficial=True,
    )
    output_limit_bytes: int = key(
        "outputLimit",
        64 * MIB,
        "bytes of unread answers above which the connection is closed",
        low=1024,
        high=4096 * MIB,
        unofficial=True,
    )
    output_total_bytes: int = key(
        "outputTotalLimit",
        256 * MIB,
        "bytes of unread answers of all connections of a listener above which those with the most are closed; above "
        "half of it, peers that have not read their last answers get no further ones",
        low=64 * 1024,
        high=64 * 1024 * MIB,
        unofficial=True,
    )
    outstanding_requests: int = key(
        "outstandingRequests",
        10_000,
        "maximum number of requests of one peer in progress",
        low=1,
        high=1_000_000,
        unofficial=True,
    )
    idle_close_s: int = key(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "idle time after which a connection is closed",
        low=1,
        high=86_400,
    )
    drain_s: int = key(
        "shutdownWaitTimeSeconds",
        30,
        "longest time requests in progress may take after SIGTERM",
        low=0,
        high=3_600,
    )
    connections_per_address: int = key(
        "maxConnectionsPerAddress",
        10_000,
        "maximum number of connections from one address to a namesrv or a broker; 0 means no limit",
        low=0,
        high=1_000_000,
        unofficial=True,
    )
    grpc_streams: int = key(
        "grpcMaxStreams",
        1_000,
        "maximum number of RPCs of one gRPC connection in progress",
        low=1,
        high=100_000,
        unofficial=True,
    )
    backlog: int = key(
        "serverSocketBacklog", 1024, "maximum number of connections waiting to be accepted", low=1, high=65535
    )

    def of_connection(self) -> "ConnectionLimits":
        """Return the limits of one connection."""
        from remoting.limits import ConnectionLimits

        return ConnectionLimits(
            max_frame_bytes=self.frame_bytes,
            max_header_bytes=self.header_bytes,
            max_json_values=self.json_values,
            output_high_watermark_bytes=self.output_bytes,
            max_output_bytes=self.output_limit_bytes,
            crowded_output_bytes=self.output_total_bytes // 2,
            max_outstanding_requests=self.outstanding_requests,
            idle_close_s=float(self.idle_close_s),
        )


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Keys of the process as a whole."""

    host: str = key(
        "bindAddress",
        LOOPBACK,
        f"address to listen on; {ALL_ADDRESSES} for all, :: for IPv6 and, where the system supports it, IPv4 "
        f"(default of `namesrv` and `broker`: {ALL_ADDRESSES}, as officially)",
    )
    published_ports: bool = key(
        "publishedPorts",
        False,
        "whether clients on a container's host are told 127.0.0.1 (brokerIP1=auto); true in the container image",
        unofficial=True,
    )
    brokers: int = key(
        "brokers",
        1,
        "number of brokers of this server; their ports are 10 apart",
        low=1,
        high=26,
        unofficial=True,
    )
    processes: bool = key(
        "brokerProcesses",
        False,
        "whether each broker runs in a process of its own, and so uses a core of its own",
        unofficial=True,
    )
    replicas: int = key(
        "brokerReplicas",
        1,
        "number of brokers of each name: a master and its slaves, each in a process of its own and with its own store",
        low=1,
        high=4,
        unofficial=True,
    )
    memory: bool = key(
        "memoryStore", False, "whether everything stays in memory and is lost at the end", unofficial=True
    )
    log_level: str = key(
        "logLevel",
        "info",
        "log level",
        choices=("debug", "info", "warning", "error"),
        unofficial=True,
    )
    log_format: str = key(
        "logFormat",
        "text",
        "form of log lines: text, or one JSON object per line",
        choices=("text", "json"),
        unofficial=True,
    )
    http_port: int = key(
        "httpPort",
        -1,
        "port of /healthz, /readyz and /metrics; 0 for a free one, -1 for none",
        low=-1,
        high=65535,
        unofficial=True,
    )
    http_address: str = key(
        "httpAddress",
        "127.0.0.1",
        "address that httpPort listens on; others than loopback addresses need httpToken",
        unofficial=True,
    )
    http_tls: str = key(
        "httpTls",
        "disabled",
        "connections that httpPort accepts: only plain ones, both kinds, or only TLS with the tls.server certificate",
        choices=("disabled", "permissive", "enforcing"),
        unofficial=True,
    )
    http_token: str = key(
        "httpToken",
        "",
        "token that /metrics requires (Authorization: Bearer TOKEN); empty: none",
        unofficial=True,
        secret=True,
    )
    http_hosts: str = key(
        "httpHosts",
        "",
        "host names, separated by commas, under which /metrics may be asked for besides addresses and localhost",
        unofficial=True,
    )
    address_server_list: str = key(
        "addressServerList",
        AUTO,
        "namesrvs that httpPort names at /rocketmq/nsaddr, separated by ;. auto: the namesrv of this process",
        pattern=rf"|{ADDRESS_OR_AUTO}(;{ADDRESS_OR_AUTO})*",
        unofficial=True,
    )
    grpc_port: int = key(
        "grpcServerPort",
        -1,
        "port of the gRPC protocol of 5.x clients (8081 at the official Proxy); 0 for a free one, -1 for none",
        low=-1,
        high=65535,
    )
    grpc_on_remoting_ports: bool = key(
        "grpcOnRemotingPorts",
        True,
        "whether the remoting ports of a process with brokers serve gRPC as well (5.x clients)",
        unofficial=True,
    )
    grpc_broker_addresses: str = key(
        "grpcBrokerAddresses",
        "",
        "addresses (10.0.0.7), networks (10.0.0.0/8) and host names (*.mq.svc), each with a port or for all, separated "
        "by ;, at which a proxy may connect to brokers that a namesrv names; empty: any but link-local ones, and "
        "loopback ones only if a namesrv is on this machine",
        unofficial=True,
    )
    control_port: int = key(
        "controlPort",
        -1,
        "port of the HTTP API for tests (time, faults, reset); 0 for a free one, -1 for none; needs memoryStore",
        low=-1,
        high=65535,
        unofficial=True,
    )
    control_address: str = key(
        "controlAddress",
        "127.0.0.1",
        "address that controlPort listens on; others than loopback addresses need controlToken",
        unofficial=True,
    )
    control_token: str = key(
        "controlToken",
        "",
        "token that the HTTP API for tests requires (Authorization: Bearer TOKEN); empty: none",
        unofficial=True,
        secret=True,
    )
    ready_file: str = key(
        "readyFile",
        "",
        "file to write the ready line to, besides standard output",
        path=True,
        unofficial=True,
    )
    metrics_export: MetricsExportConfig = field(default_factory=MetricsExportConfig)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The cluster that a process without brokers serves gRPC in front of."""

    namesrv_addr: str
    """Addresses of its namesrvs, as in ``namesrvAddr``."""
    max_message_bytes: int
    """Largest body of a message, as in ``maxMessageSize``, the name that it has in the official rmq-proxy.json."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """One process: namesrv, brokers, controller, each optional, or a proxy. `notices` go to the log at start."""

    process: ProcessConfig = field(default_factory=ProcessConfig)
    limits: ListenerLimits = field(default_factory=ListenerLimits)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    namesrv: NamesrvConfig | None = field(default_factory=NamesrvConfig)
    brokers: tuple[BrokerConfig, ...] = field(default_factory=lambda: (BrokerConfig(),))
    notices: tuple[str, ...] = ()
    controller: ControllerConfig | None = None
    proxy: ProxyConfig | None = None

    @property
    def host(self) -> str:
        return self.process.host

    @property
    def memory(self) -> bool:
        return self.process.memory


TABLES = {
    "namesrv": NamesrvConfig,
    "broker": BrokerConfig,
    "controller": ControllerConfig,
    "listener": ListenerLimits,
    "tls": TlsConfig,
    "auth": AuthConfig,
    "process": ProcessConfig,
}
