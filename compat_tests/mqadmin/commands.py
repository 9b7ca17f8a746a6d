"""The commands of mqadmin 5.4.0 in an order in which each finds what it needs.

Arguments contain placeholders: `{broker}` and `{namesrv}` are addresses, `{id}` and `{key}` the offset id and the
unique key of the first message, `{dir}` is a folder of the case.
"""

from dataclasses import dataclass
from typing import Final

TOPIC, GROUP, OTHER_GROUP = "mqadmin_topic", "mqadmin_group", "mqadmin_other"
"""A topic with four queues, one message in each, and groups with committed offsets in it, that exist before."""
MADE, MADE_GROUP = "mqadmin_made", "mqadmin_made_group"
"""A topic and a group that commands create, change and delete."""
CLUSTER, BROKER = "DefaultCluster", "broker-a"


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One call of mqadmin.

    `title` tells several calls of a command apart. `only`: a pattern; other lines depend on what else uses the server.
    `is_counted`: the printed numbers are times, rates and sizes, and are masked. `is_unordered`: lines come in the
    order of a hash table. `names_only`: what stands before the first colon of a line is compared.
    """

    name: str
    arguments: tuple[str, ...] = ()
    title: str = ""
    only: str = ""
    is_counted: bool = False
    is_unordered: bool = False
    names_only: bool = False

    @property
    def id(self) -> str:
        """The name under which the output is recorded."""
        return f"{self.name} {self.title}" if self.title else self.name


def _call(name: str, arguments: str = "", **options: str | bool) -> AdminCommand:
    return AdminCommand(name, tuple(arguments.split()), **options)  # type: ignore[arg-type]


_AT_BROKER: Final = "-b {broker}"
_ABOUT: Final = "mqadmin_|^#|Exception"
"""Lines about the topics and groups of this list, headings, and failures."""

COMMANDS: Final = (
    # topics
    _call("updateTopic", f"{_AT_BROKER} -t {MADE} -r 4 -w 4"),
    _call("updateTopic", f"-c {CLUSTER} -t {MADE} -r 2 -w 2 -p 6 -o true", title="of a cluster, in order"),
    _call("updateTopic", f"{_AT_BROKER} -t bad!name", title="with a wrong name"),
    _call("updateTopic", f"{_AT_BROKER} -t {MADE} -a +message.type=FIFO", title="with an attribute"),
    _call("updateTopic", f"{_AT_BROKER} -t {MADE} -a +no.such=1", title="with an unknown attribute"),
    _call("updateTopicList", f"{_AT_BROKER} -f {{dir}}/topics.json"),
    _call("updateTopicPerm", f"{_AT_BROKER} -t {TOPIC} -p 4"),
    _call("updateTopicPerm", f"{_AT_BROKER} -t {TOPIC} -p 4", title="to the same"),
    _call("updateTopicPerm", f"-c {CLUSTER} -t {TOPIC} -p 6", title="of a cluster"),
    _call("updateTopicPerm", f"{_AT_BROKER} -t mqadmin_absent -p 6", title="of an unknown topic"),
    _call("topicRoute", f"-t {TOPIC}"),
    _call("topicRoute", f"-t {TOPIC} -l", title="as a list"),
    _call("topicRoute", "-t mqadmin_absent", title="of an unknown topic"),
    _call("topicStatus", f"-t {TOPIC}"),
    _call("topicStatus", "-t mqadmin_absent", title="of an unknown topic"),
    _call("topicClusterList", f"-t {TOPIC}"),
    _call("topicList", only="mqadmin_", is_unordered=True),
    _call("topicList", "-c", title="by cluster", only=_ABOUT, is_unordered=True),
    _call("updateOrderConf", f"-t {TOPIC} -v broker-a:4 -m put", title="put"),
    _call("updateOrderConf", f"-t {TOPIC} -m get", title="get"),
    _call("updateOrderConf", f"-t {TOPIC} -m delete", title="delete"),
    _call("allocateMQ", f"-t {TOPIC} -i 10.0.0.1,10.0.0.2"),
    # groups
    _call("updateSubGroup", f"{_AT_BROKER} -g {MADE_GROUP} -s true -r 5"),
    _call("updateSubGroup", f"-c {CLUSTER} -g {MADE_GROUP} -d false", title="of a cluster"),
    _call("updateSubGroup", f"{_AT_BROKER} -g bad!name", title="with a wrong name"),
    _call("updateSubGroupList", f"{_AT_BROKER} -f {{dir}}/groups.json"),
    _call("setConsumeMode", f"{_AT_BROKER} -t {TOPIC} -g {MADE_GROUP} -m POP -q 2"),
    _call("setConsumeMode", f"{_AT_BROKER} -t {TOPIC} -g {MADE_GROUP} -m PULL", title="to pull"),
    _call(
        "setConsumeMode",
        f"{_AT_BROKER} -t mqadmin_absent -g {MADE_GROUP} -m POP",
        title="of an unknown topic",
    ),
    _call("getConsumerConfig", f"-g {GROUP}"),
    _call("getConsumerConfig", "-g mqadmin_absent", title="of an unknown group"),
    # brokers
    _call("brokerStatus", _AT_BROKER, names_only=True, is_unordered=True),
    _call(
        "getBrokerConfig", _AT_BROKER, only="^(brokerRole|fileReservedTime|flushDiskType|traceOn|brokerName) "
    ),
    _call("updateBrokerConfig", f"{_AT_BROKER} -k traceOn -v true"),
    _call("updateBrokerConfig", f"-c {CLUSTER} -k fileReservedTime -v 72", title="of a cluster"),
    _call("updateBrokerConfig", f"{_AT_BROKER} -k rocketmqHome -v x", title="of a closed key"),
    _call("brokerConsumeStats", _AT_BROKER, only=_ABOUT, is_counted=True),
    _call("clusterList", is_counted=True),
    _call("clusterList", "-m", title="with statistics", is_counted=True),
    _call("haStatus", _AT_BROKER, is_counted=True),
    _call("producer", _AT_BROKER, only=_ABOUT),
    _call("cleanExpiredCQ", _AT_BROKER),
    _call("deleteExpiredCommitLog", _AT_BROKER),
    _call("cleanUnusedTopic", _AT_BROKER),
    _call("resetMasterFlushOffset", f"{_AT_BROKER} -o 0"),
    _call("getColdDataFlowCtrInfo", _AT_BROKER, is_counted=True),
    _call("updateColdDataFlowCtrGroupConfig", f"{_AT_BROKER} -g {GROUP} -v 1000"),
    _call("removeColdDataFlowCtrGroupConfig", f"{_AT_BROKER} -g {GROUP}"),
    _call("setCommitLogReadAheadMode", f"{_AT_BROKER} -m 0"),
    _call("setCommitLogReadAheadMode", f"{_AT_BROKER} -m 7", title="that does not exist"),
    _call("switchTimerEngine", f"{_AT_BROKER} -e F"),
    _call("exportPopRecord", f"{_AT_BROKER} -d true"),
    _call("getBrokerEpoch", f"-b {BROKER}"),
    # messages
    _call("sendMessage", f"-t {TOPIC} -p hello -k k2 -c t2 -b {BROKER} -i 0"),
    _call("sendMessage", f"-t {TOPIC} -p hello -b {BROKER} -i 9", title="to an unknown queue"),
    _call("sendMsgStatus", f"-b {BROKER} -s 10 -c 1", is_counted=True),
    _call("checkMsgSendRT", f"-t {TOPIC} -a 2 -s 10", is_counted=True),
    _call("queryMsgById", f"-t {TOPIC} -i {{id}}"),
    _call("queryMsgByKey", f"-t {TOPIC} -k k1"),
    _call("queryMsgByKey", f"-t {TOPIC} -k mqadmin_absent", title="of an unused key"),
    _call("queryMsgByUniqueKey", f"-t {TOPIC} -i {{key}}"),
    _call("queryMsgByOffset", f"-t {TOPIC} -b {BROKER} -i 1 -o 0"),
    _call("queryMsgByOffset", f"-t {TOPIC} -b {BROKER} -i 1 -o 99", title="beyond the end"),
    _call("queryMsgTraceById", "-i {key}"),
    _call("queryCq", f"-t {TOPIC} -q 1 -i 0 -c 1 {_AT_BROKER}"),
    _call("printMsg", f"-t {TOPIC} -d true", only="MSGID|BODY|Exception|no matched|FOUND"),
    _call("printMsgByQueue", f"-t {TOPIC} -a {BROKER} -i 1 -p true -d true"),
    _call("consumeMessage", f"-t {TOPIC} -b {BROKER} -i 1 -o 0 -c 1", only="MSGID|BODY|Exception|Consume"),
    # consumers
    _call("consumerProgress", f"-g {GROUP}"),
    _call("consumerProgress", "-g mqadmin_absent", title="of an unknown group"),
    _call("consumerProgress", title="of all groups", only="mqadmin_(group|other)|^#"),
    _call("consumerConnection", f"-g {GROUP}"),
    _call("consumerConnection", f"-g {GROUP} {_AT_BROKER}", title="at a broker"),
    _call("consumerStatus", f"-g {GROUP}"),
    _call("producerConnection", f"-g mqadmin_absent -t {TOPIC}"),
    _call("cloneGroupOffset", f"-s {GROUP} -d {OTHER_GROUP} -t {TOPIC} -o true"),
    _call("resetOffsetByTime", f"-g {GROUP} -t {TOPIC} -s -1 -f true"),
    _call("resetOffsetByTime", f"-g {GROUP} -t {TOPIC} -s 0 -f true", title="to the beginning"),
    _call("resetOffsetByTime", f"-g {GROUP} -t {TOPIC} -s now -b {{broker}} -q 1 -o 0", title="of a queue"),
    _call("skipAccumulatedMessage", f"-g {GROUP} -t {TOPIC} -f true"),
    _call("statsAll", f"-t {TOPIC}", is_counted=True),
    _call("statsAll", "-a", title="of active topics", only=_ABOUT, is_counted=True),
    # the namesrv
    _call(
        "getNamesrvConfig",
        only="^(orderMessageEnable|enableTopicList|clusterTest|productEnvName) ",
        is_unordered=True,
    ),
    _call("updateNamesrvConfig", "-k waitSecondsForService -v 45"),
    _call("updateNamesrvConfig", "-k rocketmqHome -v x", title="of a closed key"),
    _call("updateKvConfig", "-s mqadmin -k k -v v"),
    _call("deleteKvConfig", "-s mqadmin -k k"),
    _call("wipeWritePerm", f"-b {BROKER}", is_counted=True),
    _call("addWritePerm", f"-b {BROKER}", is_counted=True),
    # exports
    _call("exportMetadata", f"{_AT_BROKER} -t -f {{dir}}", title="of topics"),
    _call("exportMetadata", f"{_AT_BROKER} -g -f {{dir}}", title="of groups"),
    _call("exportMetadata", f"-c {CLUSTER} -f {{dir}}", title="of a cluster"),
    _call("exportConfigs", f"-c {CLUSTER} -f {{dir}}"),
    _call("exportMetrics", f"-c {CLUSTER} -f {{dir}}"),
    _call("exportMetadataInRocksDB", "-p {dir}/absent -t topics"),
    _call("rocksDBConfigToJson", f"{_AT_BROKER} -t topics"),
    _call("checkRocksdbCqWriteProgress", f"-c {CLUSTER} -n {{namesrv}}"),
    _call("dumpCompactionLog", "-f {dir}/absent"),
    # controllers and containers, which neither server is
    _call("getControllerMetaData", "-a {namesrv}"),
    _call("getControllerConfig", "-a {namesrv}"),
    _call("updateControllerConfig", "-a {namesrv} -k a -v b"),
    _call("getSyncStateSet", f"-a {{namesrv}} -b {BROKER}"),
    _call("electMaster", f"-a {{namesrv}} -b 0 -bn {BROKER} -c {CLUSTER}"),
    _call("cleanBrokerMetadata", f"-a {{namesrv}} -bn {BROKER} -b 7 -c {CLUSTER}"),
    _call("addBroker", "-c {broker} -b {dir}/broker.conf"),
    _call("removeBroker", f"-c {{broker}} -b {CLUSTER}:{BROKER}:0"),
    # users and policies, without access control
    _call("createUser", f"{_AT_BROKER} -u mqadmin_user -p secret"),
    _call("updateUser", f"{_AT_BROKER} -u mqadmin_user -p other"),
    _call("deleteUser", f"{_AT_BROKER} -u mqadmin_user"),
    _call("getUser", f"{_AT_BROKER} -u mqadmin_user"),
    _call("listUser", _AT_BROKER),
    _call("copyUser", "-f {broker} -t {broker} -u mqadmin_user"),
    _call("createAcl", f"{_AT_BROKER} -s User:mqadmin_user -r Topic:t -a Pub -d Allow"),
    _call("updateAcl", f"{_AT_BROKER} -s User:mqadmin_user -r Topic:t -a Sub -d Allow"),
    _call("deleteAcl", f"{_AT_BROKER} -s User:mqadmin_user"),
    _call("getAcl", f"{_AT_BROKER} -s User:mqadmin_user"),
    _call("listAcl", _AT_BROKER),
    _call("copyAcl", "-f {broker} -t {broker} -s User:mqadmin_user"),
    # the end; after a static topic the official broker's topics cannot be exported any more
    _call("updateStaticTopic", f"-b {BROKER} -t mqadmin_static -qn 4"),
    _call("remappingStaticTopic", f"-b {BROKER} -t mqadmin_static"),
    _call("deleteSubGroup", f"{_AT_BROKER} -g {MADE_GROUP} -r true"),
    _call("deleteTopic", f"-c {CLUSTER} -t {MADE}"),
)
NOT_RUN: Final = ("clusterRT", "startMonitoring")
"""Commands that never end."""
