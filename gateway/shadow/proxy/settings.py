"""What can be set about listeners and links: table `[listen]`."""

from dataclasses import dataclass

from gateway.shadow.clusters.security import ListenTls
from gateway.shadow.settings import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The table `[listen]`: where clients reach the gateway, and how much it keeps for each."""

    host: str = setting("0.0.0.0", "Address to listen on; :: for all IPv6 and IPv4 addresses.")
    advertise: str = setting(
        "auto", "Host that clients are told; auto: the one by which each of them reached the gateway."
    )
    namesrv_port: int = setting(
        9876, "Port of the first namesrv, the next ones follow; 0 takes free ones.", low=0, high=65535
    )
    broker_port: int = setting(
        10911,
        "Port of the first broker address; others follow 10 apart, by broker name and id; 0 takes free ones.",
        low=0,
        high=65535,
    )
    ports: dict[str, int] = setting(
        dict,
        'Ports of single addresses of the primary: {"10.0.0.1:10911" = 20911}; all others as broker_port says.',
    )
    ports_file: str = setting(
        "",
        "File of the ports that were given from `broker_port` on, so that each address has the same one after a start; "
        "empty keeps them in memory only, and they are given anew.",
    )
    vip: bool = setting(
        False, "Also listen on each broker's port less 2, for clients with vipChannelEnabled."
    )
    refresh_s: float = setting(5.0, "Seconds between looks at the primary's brokers.", low=0.05, high=3600)
    connections: int = setting(20_000, "Client connections at most; more are closed at once.", low=1)
    frame_bytes: int = setting(
        16 * MIB, "Largest frame passed on, its length word included, as officially.", low=1024
    )
    read_bytes: int = setting(256 * 1024, "Bytes read at a time.", low=4096)
    kept_bytes: int = setting(
        1 * MIB, "Unsent bytes of one direction of a link, above which no more are read for it.", low=4096
    )
    kept_total_bytes: int = setting(
        1024 * MIB,
        "Bytes held for all clients together; beyond that those for whom most is held are closed.",
        low=1 * MIB,
    )
    remembered: int = setting(
        10_000, "Requests of one connection remembered until they are answered, where somebody looks.", low=1
    )
    remembered_bytes: int = setting(
        32 * MIB, "Bytes of these requests; the oldest are given up for new ones.", low=1024
    )
    remembered_s: float = setting(
        180.0, "Seconds after which an answer is not waited for any more; nothing is closed.", low=1
    )
    connect_s: float = setting(3.0, "Seconds within which the primary must accept a connection.", low=0.1)
    stall_s: float = setting(
        10.0,
        "Seconds for which a target that takes no more directed requests may stop the reading of a client; then the "
        "client's connection is closed, so that its traffic with the primary goes on over a new one.",
        low=0.1,
    )
    linger_s: float = setting(
        5.0, "Seconds in which the end that is left gets what was received for it.", low=0
    )
    tls: ListenTls = setting(ListenTls, "What clients may speak.")
    drain_s: float = setting(5.0, "Seconds in which answers may still arrive after SIGTERM.", low=0)
