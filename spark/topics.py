"""Create a topic without `mqadmin`. An existing topic gets the requested number of queues."""

import time
from typing import Final

from codec.constants import ResponseCode
from codec.topics import DEFAULT_TOPIC
from remoting.errors import RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.requests.topics import UpdateAndCreateTopic
from spark.endpoint import ClusterEndpoint, Connections, master_address
from spark.errors import EndpointError
from spark.options import addresses

_READ_WRITE_PERMISSION: Final = 6
_MAX_WAIT_S: Final = 30.0


def create_topic(name_server: str, topic: str, queues: int = 4) -> None:
    """Create a topic at every broker and wait until the name servers know it. Raises EndpointError."""
    with Connections(ClusterEndpoint(addresses(name_server))) as connections:
        brokers = connections.request_name_server(GetBrokerClusterInfo()).data.broker_addr_table.values()
        for broker in brokers:
            if address := master_address(broker):
                connections.request_from(address, _creation_request(topic, queues))
        _wait_until_known(connections, topic)


def _creation_request(topic: str, queues: int) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=_READ_WRITE_PERMISSION,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
    )


def _wait_until_known(connections: Connections, topic: str) -> None:
    deadline_s = time.monotonic() + _MAX_WAIT_S
    while time.monotonic() < deadline_s:
        try:
            connections.request_name_server(GetRouteInfoByTopic(topic=topic))
            return
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise EndpointError(f"route of topic {topic}: {error}") from error
        time.sleep(0.05)
    raise EndpointError(f"the name servers do not know topic {topic} after {_MAX_WAIT_S:.0f} s")
