"""Plans the copy of topics, groups and topic orders from the primary to the target as steps for `apply_steps`.

Repeating the copy changes nothing. Consumer offsets are copied by `full_sync`, messages by `cutover/backfill`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.topics import (
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    TOOL_GROUPS,
    is_system_group,
)
from gateway.shadow.clusters.cluster import MAX_QUEUES_PER_TOPIC, Cluster
from gateway.shadow.clusters.sync_steps import (
    SyncAction,
    SyncStep,
    apply_steps,
    attribute_changes,
    describe_differences,
)
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.groups import (
    GetAllSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndGetGroupForbidden,
)
from remoting.requests.namesrv import GetKvConfig, GetKvListByNamespace, PutKvConfig
from remoting.requests.topics import (
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    UpdateAndCreateTopic,
)

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""KV namespace of the queues of ordered topics. Source: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG, 5.4.0."""
FORBIDDEN_READ: Final = 1 << 2
"""The flag of a group that may not read a topic. Source: PermName.INDEX_PERM_READ, 5.4.0."""

TOPIC_FIELDS: Final = (
    "read_queue_nums",
    "write_queue_nums",
    "perm",
    "topic_filter_type",
    "topic_sys_flag",
    "order",
    "attributes",
)
GROUP_FIELDS: Final = tuple(item.name for item in SubscriptionGroupConfig.FIELDS if item.name != "group_name")

NAMES_PER_TURN: Final = 200
"""Topics or groups that are compared before other tasks have their turn: about 2 ms."""

NameFilter = Collection[str] | None
"""Names to include; None includes all."""


async def copy_topic(
    primary: Cluster, target: Cluster, broker: str, target_broker: str, topic: str
) -> SyncStep:
    """Make one topic of the target's broker equal to the primary's, and return the step that was taken.

    Raises RequestError if the primary has no such topic, and the errors of `Cluster.ask_broker` for the primary. A
    refusal by the target is in the step.
    """
    desired = await find_topic(primary, broker, topic)
    if desired is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"broker {broker} has no topic {topic}")
    step = topic_step(desired, await find_topic(target, target_broker, topic), target_broker)
    await apply_steps(target, [step])
    return step


async def find_topic(cluster: Cluster, broker: str, topic: str) -> TopicConfig | None:
    """Return one topic of a broker; None if it has none of this name."""
    try:
        return (await cluster.ask_broker(broker, GetTopicConfig(topic=topic))).data
    except RequestError as refused:
        if refused.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if (
            refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        ):  # brokers before 5.0 know the next request only
            raise
    return (await topics_of(cluster, broker)).get(topic)


async def topics_of(cluster: Cluster, broker: str) -> dict[str, TopicConfig]:
    """Return every topic of a broker, its own topics included."""
    return (await cluster.ask_broker(broker, GetAllTopicConfig())).data.topic_config_table


async def groups_of(cluster: Cluster, broker: str) -> SubscriptionGroupWrapper:
    """Return every group of a broker, with the topics that each may not read."""
    return (await cluster.ask_broker(broker, GetAllSubscriptionGroupConfig())).data


# -- topics ------------------------------------------------------------------------------------------------------


def topic_step(desired: TopicConfig, present: TopicConfig | None, broker: str) -> SyncStep:
    """Return the step that makes a topic of the target's ``broker`` equal to the wanted one."""
    name = desired.topic_name
    # A topic with two billion queues would take the target down.
    queues = max(desired.read_queue_nums, desired.write_queue_nums)
    if queues > MAX_QUEUES_PER_TOPIC:
        detail = f"{queues} queues are more than the {MAX_QUEUES_PER_TOPIC} that are copied"
        return SyncStep("topic", name, SyncAction.LEFT_OUT, detail, broker)
    if present is None:
        detail = f"{desired.read_queue_nums}/{desired.write_queue_nums} queues"
        return SyncStep("topic", name, SyncAction.CREATE, detail, broker, (topic_request(desired, {}),))
    changes = ", ".join(describe_differences(desired, present, TOPIC_FIELDS))
    if not changes:
        return SyncStep("topic", name, SyncAction.SAME, "", broker)
    request = topic_request(desired, present.attributes)
    return SyncStep("topic", name, SyncAction.CHANGE, changes, broker, (request,))


def topic_request(desired: TopicConfig, present: dict[str, str]) -> UpdateAndCreateTopic:
    """Return the request that makes a topic as wanted, at a broker where it has the attributes ``present``."""
    changes = attribute_changes(desired.attributes, present)
    attributes = ",".join(f"{key}={value}" if value else key for key, value in changes.items())
    return UpdateAndCreateTopic.from_config(desired, attributes)


async def plan_topics(
    primary: Cluster, target: Cluster, broker: str, target_broker: str, topics: NameFilter = None
) -> list[SyncStep]:
    """Return one step for each topic of the primary's broker; system topics are left out."""
    desired = await topics_of(primary, broker)
    present = await topics_of(target, target_broker)
    system = set((await primary.ask_broker(broker, GetSystemTopicListFromBroker())).data.topic_list)
    steps = []
    for number, name in enumerate(_select_names(desired, topics)):
        if not number % NAMES_PER_TURN:
            await trio.lowlevel.checkpoint()
        if name in system or is_system_topic(name):
            steps.append(
                SyncStep("topic", name, SyncAction.LEFT_OUT, "the broker's own topic", target_broker)
            )
        else:
            steps.append(topic_step(desired[name], present.get(name), target_broker))
    return steps


def is_system_topic(topic: str) -> bool:
    """Tell whether every broker creates a topic of this name for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def _select_names(names: Iterable[str], name_filter: NameFilter) -> list[str]:
    return sorted(name for name in names if name_filter is None or name in name_filter)


# -- groups ------------------------------------------------------------------------------------------------------


def group_step(
    desired: SubscriptionGroupConfig, present: SubscriptionGroupConfig | None, broker: str
) -> SyncStep:
    """Return the step that makes a group of the target's ``broker`` equal to the wanted one."""
    name = desired.group_name
    if present is None:
        return SyncStep("group", name, SyncAction.CREATE, "", broker, (_group_request(desired, {}),))
    changes = ", ".join(describe_differences(desired, present, GROUP_FIELDS))
    if not changes:
        return SyncStep("group", name, SyncAction.SAME, "", broker)
    request = _group_request(desired, present.attributes)
    return SyncStep("group", name, SyncAction.CHANGE, changes, broker, (request,))


def _group_request(
    desired: SubscriptionGroupConfig, present: dict[str, str]
) -> UpdateAndCreateSubscriptionGroup:
    # A copy, because in a request the attributes are a list of changes.
    changed = SubscriptionGroupConfig.from_value(desired.to_value())
    changed.attributes = attribute_changes(desired.attributes, present)
    return UpdateAndCreateSubscriptionGroup(data=changed)


async def plan_groups(
    primary: Cluster, target: Cluster, broker: str, target_broker: str, groups: NameFilter = None
) -> list[SyncStep]:
    """Return one step for each group of the primary's broker, and one for each topic whose read permission differs."""
    desired = await groups_of(primary, broker)
    present = await groups_of(target, target_broker)
    steps = []
    for number, name in enumerate(_select_names(desired.subscription_group_table, groups)):
        if not number % NAMES_PER_TURN:
            await trio.lowlevel.checkpoint()
        if name in TOOL_GROUPS or is_system_group(name):
            steps.append(
                SyncStep("group", name, SyncAction.LEFT_OUT, "the system's own group", target_broker)
            )
            continue
        config = desired.subscription_group_table[name]
        steps.append(group_step(config, present.subscription_group_table.get(name), target_broker))
        flags = desired.forbidden_table.get(name, {}), present.forbidden_table.get(name, {})
        steps += forbidden_steps(name, *flags, target_broker)
    return steps


def forbidden_steps(
    group: str, desired: Mapping[str, int], present: Mapping[str, int], broker: str
) -> list[SyncStep]:
    """Return the steps that withdraw or grant a group's permission to read topics."""
    steps = []
    for topic in sorted({*desired, *present}):
        closed = bool(desired.get(topic, 0) & FORBIDDEN_READ)
        if closed != bool(present.get(topic, 0) & FORBIDDEN_READ):
            request = UpdateAndGetGroupForbidden(group=group, topic=topic, readable=not closed)
            detail = "may not read" if closed else "may read"
            steps.append(
                SyncStep("permission", f"{topic}@{group}", SyncAction.CHANGE, detail, broker, (request,))
            )
    return steps


# -- the order of topics, stored by namesrvs -----------------------------------------------------------------------


async def plan_orders(
    primary: Cluster, target: Cluster, brokers: Mapping[str, str], topics: NameFilter = None
) -> list[SyncStep]:
    """Return one step for each topic with an order configuration.

    ``brokers`` maps the primary's broker names to the target's.
    """
    try:
        table = (await primary.ask_namesrv(GetKvListByNamespace(namespace=ORDER_NAMESPACE))).data.table
    except RequestError as refused:
        if refused.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return []
    return [
        order_step(topic, rename_brokers(table[topic], brokers), await _find_order(target, topic))
        for topic in _select_names(table, topics)
    ]


async def _find_order(cluster: Cluster, topic: str) -> str | None:
    try:
        return (await cluster.ask_namesrv(GetKvConfig(namespace=ORDER_NAMESPACE, key=topic))).value
    except RequestError as refused:
        if refused.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return None


def order_step(topic: str, desired: str, present: str | None) -> SyncStep:
    """Return the step that makes namesrvs report the same order of a topic's queues."""
    if desired == present:
        return SyncStep("order", topic, SyncAction.SAME)
    action = SyncAction.CREATE if present is None else SyncAction.CHANGE
    request = PutKvConfig(namespace=ORDER_NAMESPACE, key=topic, value=desired)
    return SyncStep(
        "order", topic, action, desired if present is None else f"{present} -> {desired}", requests=(request,)
    )


def rename_brokers(order: str, brokers: Mapping[str, str]) -> str:
    """Return ``broker:queues;…`` with the target's broker names. Source: KVConfigManager, MQClientInstance, 5.4.0."""
    parts = (part.partition(":") for part in order.split(";") if part)
    return ";".join(f"{brokers.get(name, name)}{colon}{queues}" for name, colon, queues in parts)
