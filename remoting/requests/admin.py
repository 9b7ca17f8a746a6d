"""Requests about a broker as a whole."""

from remoting.bodies.topics import KVTable
from remoting.declare import Header, Request, field, i32


class UpdateBrokerConfig(Request[None], code=25):
    """Change settings; the body is properties text. Source: AdminBrokerProcessor.updateBrokerConfig."""


class GetBrokerConfigReply(Header):
    """The version of the settings as JSON; the body is properties text."""

    version: str


class GetBrokerConfig(Request[GetBrokerConfigReply], code=26):
    """Return the broker's settings. Source: AdminBrokerProcessor.getBrokerConfig."""


class GetBrokerRuntimeInfoReply(Header):
    """The answer to GET_BROKER_RUNTIME_INFO."""

    data: KVTable


class GetBrokerRuntimeInfo(Request[GetBrokerRuntimeInfoReply], code=28):
    """Return statistics and state of a running broker. Source: AdminBrokerProcessor.getBrokerRuntimeInfo."""


class DeleteExpiredCommitlog(Request[None], code=329):
    """Delete expired commit log files. Source: AdminBrokerProcessor.deleteExpiredCommitLog."""


class ExportRocksdbConfigToJson(Request[None], code=355):
    """Write RocksDB tables as JSON files. Source: AdminBrokerProcessor.exportRocksDBConfigToJson."""

    config_type: str


class UpdateColdDataFlowCtrConfig(Request[Header], code=2001):
    """Limit the rate of groups that read cold data; the body is properties text.

    Source: AdminBrokerProcessor.updateColdDataFlowCtrGroupConfig.
    """


class RemoveColdDataFlowCtrConfig(Request[None], code=2002):
    """Remove the cold data limit of a group; the body is its name.

    Source: AdminBrokerProcessor.removeColdDataFlowCtrGroupConfig.
    """


class GetColdDataFlowCtrInfo(Request[Header], code=2003):
    """Return the limits of cold reads as JSON in the body. Source: AdminBrokerProcessor.getColdDataFlowCtrInfo."""


class SetCommitlogReadMode(Request[Header], code=2004):
    """Set the read-ahead advice that the operating system gets for commit log files.

    Source: AdminBrokerProcessor.setCommitLogReadaheadMode.
    """

    read_ahead_mode: i32 | None = field(wire="READ_AHEAD_MODE", default=None)
