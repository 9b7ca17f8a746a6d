"""Requests about a broker as a whole; carrying them out is not here."""

from remoting.bodies.topics import KVTable
from remoting.declare import Header, Request, field, i32


class UpdateBrokerConfig(Request[None], code=25):
    """Change settings; the body is properties text. Source: AdminBrokerProcessor.updateBrokerConfig."""


class GetBrokerConfigReply(Header):
    """The version of the settings as JSON; the body is properties text."""

    version: str


class GetBrokerConfig(Request[GetBrokerConfigReply], code=26):
    """Settings. Source: AdminBrokerProcessor.getBrokerConfig."""


class GetBrokerRuntimeInfoReply(Header):
    """The answer to GET_BROKER_RUNTIME_INFO."""

    data: KVTable


class GetBrokerRuntimeInfo(Request[GetBrokerRuntimeInfoReply], code=28):
    """Facts and figures of a running broker. Source: AdminBrokerProcessor.getBrokerRuntimeInfo."""


class DeleteExpiredCommitlog(Request[None], code=329):
    """Delete commit log files past their retention. Source: AdminBrokerProcessor.deleteExpiredCommitLog."""


class ExportRocksdbConfigToJson(Request[None], code=355):
    """Write RocksDB tables as JSON files. Source: AdminBrokerProcessor.exportRocksDBConfigToJson."""

    config_type: str


class UpdateColdDataFlowCtrConfig(Request[None], code=2001):
    """Limit groups that read cold data; the body is properties text.

    Source: AdminBrokerProcessor.updateColdDataFlowCtrGroupConfig.
    """


class RemoveColdDataFlowCtrConfig(Request[None], code=2002):
    """Lift such a limit; the body is the group.

    Source: AdminBrokerProcessor.removeColdDataFlowCtrGroupConfig.
    """


class GetColdDataFlowCtrInfo(Request[Header], code=2003):
    """Limits of cold reads; the body is JSON. Source: AdminBrokerProcessor.getColdDataFlowCtrInfo."""


class SetCommitlogReadMode(Request[None], code=2004):
    """Advise the operating system how commit logs are read.

    Source: AdminBrokerProcessor.setCommitLogReadaheadMode.
    """

    read_ahead_mode: i32 | None = field(wire="READ_AHEAD_MODE", default=None)
