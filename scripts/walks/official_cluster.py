"""The program `walk-official` of walks: an official namesrv, broker and Proxy, at their usual ports, until Ctrl-C."""

import signal
import sys
from typing import Final

from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.proxy import OfficialProxy

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
PROXY_PORT: Final = 8081


def main() -> None:
    """Run the cluster; end its processes with this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cluster = OfficialEndpoint()
    cluster.namesrv_port, cluster.broker_port = NAMESRV_PORT, BROKER_PORT
    with cluster, OfficialProxy(cluster.namesrv, port=PROXY_PORT) as proxy:
        print(f"ready: namesrv {cluster.namesrv}, Proxy {proxy.address}", flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
