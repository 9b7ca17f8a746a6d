"""Topics as the brokers of a cluster hold them: listing, describing, creating, changing, deleting."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from codec.constants import ResponseCode
from codec.topics import (
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    READ_WRITE,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    permission_text,
)
from gateway.admin.errors import AdminError, NotFound, Refused
from remoting.bodies.routes import QueueData, TopicRouteData
from remoting.bodies.topics import TopicConfig, TopicOffset
from remoting.requests.namesrv import (
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    RegisterTopicInNamesrv,
)
from remoting.requests.topics import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    UpdateAndCreateTopic,
)

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

USER, RETRY, DEAD_LETTERS, SYSTEM = "user", "retry", "dead letters", "system"
MESSAGE_TYPE: Final = "message.type"
PERMISSIONS: Final = {"rw": READ_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}
"""Permissions as flags name them."""


def classify_topic(name: str, cluster_names: Iterable[str] = ()) -> str:
    """Return the kind of a topic; brokers and clusters (``cluster_names``) have a topic of their own name."""
    if name.startswith(RETRY_PREFIX):
        return RETRY
    if name.startswith(DLQ_PREFIX):
        return DEAD_LETTERS
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX) or name in cluster_names:
        return SYSTEM
    # Names that the official server makes up for itself: DefaultCluster_REPLY_TOPIC, %SYS%…
    is_reply = name.endswith("_REPLY_TOPIC") and name.removesuffix("_REPLY_TOPIC") in cluster_names
    return SYSTEM if is_reply else USER


def names_of_cluster(client: "AdminClient") -> set[str]:
    """Return the names of clusters and brokers."""
    return {*client.cluster.cluster_addr_table, *client.cluster.broker_addr_table}


def list_topics(
    client: "AdminClient", pattern: str = "*", *, all_kinds: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each topic whose name matches a shell pattern; topics of users only, unless ``all_kinds``.

    Names come from the namesrv, settings from the brokers; those of a broker that cannot be reached are missing.
    """
    names = names_of_cluster(client)
    listed = client.ask_namesrv(GetAllTopicListFromNameserver()).data.topic_list
    configs = _configs_of_brokers(client)
    rows = []
    for name in sorted(set(listed)):
        kind = classify_topic(name, names)
        if fnmatchcase(name, pattern) and (all_kinds or kind == USER):
            topic_configs = {broker: table[name] for broker, table in configs.items() if name in table}
            rows.append(_topic_row(name, kind, topic_configs))
    return rows


def _configs_of_brokers(client: "AdminClient") -> dict[str, dict[str, TopicConfig]]:
    def read(broker: str) -> dict[str, TopicConfig]:
        try:
            return client.ask_broker(broker, GetAllTopicConfig()).data.topic_config_table
        except AdminError:
            return {}

    brokers = list(client.masters)
    return dict(zip(brokers, client.map_brokers(brokers, read), strict=True))


def _topic_row(name: str, kind: str, configs_by_broker: Mapping[str, TopicConfig]) -> dict[str, Any]:
    configs = list(configs_by_broker.values())
    attributes = {key: value for config in configs for key, value in attributes_of(config).items()}
    return {
        "topic": name,
        "kind": kind,
        "type": attributes.pop(MESSAGE_TYPE, None),
        "brokers": sorted(configs_by_broker),
        "readQueues": sum(config.read_queue_nums for config in configs),
        "writeQueues": sum(config.write_queue_nums for config in configs),
        "permission": "/".join(sorted({permission_text(config.perm) for config in configs})) or None,
        "ordered": any(config.order for config in configs),
        "attributes": attributes,
    }


def attributes_of(config: TopicConfig) -> dict[str, str]:
    """Return the attributes of a topic."""
    return dict(sorted((config.attributes or {}).items()))


def read_config(client: "AdminClient", broker: str, topic: str) -> TopicConfig | None:
    """Return a topic's settings on one broker; None if it does not have the topic.

    From a server without GET_TOPIC_CONFIG (before 5.0) all topics are read.
    """
    try:
        return client.ask_broker(broker, GetTopicConfig(topic=topic)).data
    except Refused as refused:
        if refused.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return client.ask_broker(broker, GetAllTopicConfig()).data.topic_config_table.get(topic)


def describe_topic(client: "AdminClient", topic: str) -> dict[str, Any]:
    """Return everything about one topic: settings by broker, queues with their offsets, groups. Raises NotFound."""
    route = client.route(topic)
    brokers = sorted(queue_data.broker_name for queue_data in route.queue_datas)
    addresses = {
        broker_data.broker_name: dict(sorted(broker_data.broker_addrs.items()))
        for broker_data in route.broker_datas
    }
    queues_by_broker = {queue_data.broker_name: queue_data for queue_data in route.queue_datas}

    def read(broker: str) -> tuple[TopicConfig | None, dict[int, TopicOffset], list[str]]:
        config = read_config(client, broker, topic)
        if config is None:  # the route still names a broker on which the topic was deleted
            return None, {}, []
        stats = client.ask_broker(broker, GetTopicStatsInfo(topic=topic)).data.offset_table
        groups = client.ask_broker(broker, QueryTopicConsumeByWho(topic=topic)).data.group_list
        return config, {queue.queue_id: offsets for queue, offsets in stats.items()}, groups

    answers = dict(zip(brokers, client.map_brokers(brokers, read), strict=True))
    attributes: dict[str, str] = {}
    for config, _, _ in answers.values():
        attributes |= attributes_of(config) if config is not None else {}
    queues = [
        {
            "broker": broker,
            "queue": queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset,
            "lastStoredMs": offsets.last_update_timestamp or None,
        }
        for broker, (_, stats, _) in answers.items()
        for queue_id, offsets in sorted(stats.items())
    ]
    return {
        "topic": topic,
        "kind": classify_topic(topic, names_of_cluster(client)),
        "type": attributes.pop(MESSAGE_TYPE, None),
        "attributes": attributes,
        "ordered": any(config.order for config, _, _ in answers.values() if config is not None),
        "messages": sum(queue["messages"] for queue in queues),
        "groups": sorted({group for _, _, groups in answers.values() for group in groups}),
        "brokers": [
            {
                "broker": broker,
                "addresses": {str(number): address for number, address in addresses.get(broker, {}).items()},
                "readQueues": queues_by_broker[broker].read_queue_nums,
                "writeQueues": queues_by_broker[broker].write_queue_nums,
                "permission": permission_text(queues_by_broker[broker].perm),
            }
            for broker in brokers
        ],
        "queues": queues,
    }


# -- changes ------------------------------------------------------------------------------------------------------


def attribute_text(attributes: Mapping[str, str], removed: Sequence[str] = ()) -> str | None:
    """Return attributes in the form that brokers read, ``+key=value,-key``; None without any."""
    parts = [f"+{key}={value}" for key, value in attributes.items()] + [f"-{key}" for key in removed]
    return ",".join(parts) or None


def brokers_with_topic(client: "AdminClient", topic: str, brokers: Sequence[str]) -> dict[str, TopicConfig]:
    """Return the settings of a topic by broker, for the brokers that have it."""
    configs = client.map_brokers(brokers, lambda broker: read_config(client, broker, topic))
    return {broker: config for broker, config in zip(brokers, configs, strict=True) if config is not None}


def create_topic(
    client: "AdminClient", config: TopicConfig, attributes: Mapping[str, str], brokers: Sequence[str]
) -> None:
    """Create a topic on some brokers. Raises AdminError if one of them has it, or ignores attributes (before 5.0)."""
    present = brokers_with_topic(client, config.topic_name, brokers)
    if present:
        raise AdminError(
            f'topic "{config.topic_name}" exists on {", ".join(present)}; change it with "rmq-gateway topic alter".'
        )
    request = UpdateAndCreateTopic.from_config(config, attribute_text(attributes))
    client.map_brokers(brokers, lambda broker: client.ask_broker(broker, request))
    for broker, created in brokers_with_topic(
        client, config.topic_name, brokers if attributes else ()
    ).items():
        ignored = [key for key, value in attributes.items() if attributes_of(created).get(key) != value]
        if ignored:
            raise AdminError(
                f'topic "{config.topic_name}" was created, but {broker} ignored {", ".join(ignored)}: brokers '
                "before 5.0 have no attributes and types"
            )


def alter_topic(
    client: "AdminClient",
    topic: str,
    brokers: Sequence[str],
    changes: Mapping[str, Any],
    attributes: Mapping[str, str],
    removed: Sequence[str],
) -> list[dict[str, Any]]:
    """Change fields and attributes of a topic where it exists; return a row for each change. Raises NotFound."""
    present = brokers_with_topic(client, topic, brokers)
    if not present:
        client.route(topic)  # raises NotFound with a suggestion
        raise NotFound(f'topic "{topic}" is on none of the brokers {", ".join(brokers)}')
    rows = []
    for broker, config in present.items():
        before = {name: getattr(config, name) for name in changes}
        old_attributes = attributes_of(config)
        for name, value in changes.items():
            setattr(config, name, value)
        client.ask_broker(
            broker, UpdateAndCreateTopic.from_config(config, attribute_text(attributes, removed))
        )
        after = attributes_of(read_config(client, broker, topic) or config) if attributes or removed else {}
        rows += [
            {"broker": broker, "setting": name, "before": before[name], "now": value}
            for name, value in changes.items()
            if before[name] != value
        ]
        rows += [
            {"broker": broker, "setting": key, "before": old_attributes.get(key), "now": after.get(key)}
            for key, value in {**attributes, **dict.fromkeys(removed)}.items()
            if old_attributes.get(key) != value
        ]
    return rows


def delete_topic(client: "AdminClient", topic: str, brokers: Sequence[str]) -> list[str]:
    """Delete a topic from brokers, and its route there from all namesrvs; return the brokers that had it.

    Raises NotFound if neither a broker nor a namesrv knows the topic.
    """
    present = brokers_with_topic(client, topic, brokers)
    if not present:
        client.route(topic)
    client.map_brokers(present, lambda broker: client.ask_broker(broker, DeleteTopicInBroker(topic=topic)))
    other_brokers = [broker for broker in client.masters if broker not in brokers]
    keepers = brokers_with_topic(client, topic, other_brokers)
    for cluster, members in client.cluster.cluster_addr_table.items():
        if set(brokers) & set(members):
            client.ask_namesrvs(DeleteTopicInNamesrv(topic=topic, cluster_name=cluster))
            _restore_route(
                client, topic, {member: keepers[member] for member in members if member in keepers}
            )
    return list(present)


def _restore_route(client: "AdminClient", topic: str, keepers: Mapping[str, TopicConfig]) -> None:
    """Register the queues of brokers that keep the topic again: a namesrv only deletes the route of a whole cluster.

    A namesrv before 5.0, or one in the process of its brokers, refuses them. Then each broker is made to register the
    topic again, by changing its filter type to the other value and back, which has no other effect.
    """
    queues = [
        QueueData(
            broker_name=broker,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        for broker, config in keepers.items()
    ]
    if not queues:
        return
    try:
        client.ask_namesrvs(RegisterTopicInNamesrv(topic=topic, data=TopicRouteData(queue_datas=queues)))
    except Refused:
        for broker, config in keepers.items():
            before = config.topic_filter_type
            for config.topic_filter_type in ("SINGLE_TAG" if before == "MULTI_TAG" else "MULTI_TAG", before):
                client.ask_broker(broker, UpdateAndCreateTopic.from_config(config, None))


def wait_for_route(client: "AdminClient", topic: str, brokers: Iterable[str], timeout_s: float) -> bool:
    """Wait until the topic's route at a namesrv contains all these brokers; return False at the timeout."""
    import time

    deadline_s = time.monotonic() + timeout_s
    while True:
        route = client.find_route(topic)
        if route is not None and {queue_data.broker_name for queue_data in route.queue_datas} >= set(brokers):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
