"""Requests of tools about parts of the official storage that this broker does not have: they find them idle.

The official server has them switched off by default (`coldDataFlowControlEnable`, `popConsumerKVServiceEnable`), and
answers as this one. Changes that would have an effect here are refused instead of ignored.
"""

import json
from typing import Final

from codec.constants import ResponseCode
from gateway.broker.broker import Broker
from gateway.broker.processors.live_config import apply_broker_config
from gateway.config.keys import with_values
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.admin import (
    GetColdDataFlowCtrInfo,
    RemoveColdDataFlowCtrConfig,
    SetCommitlogReadMode,
    UpdateColdDataFlowCtrConfig,
)
from remoting.requests.pop import PopRollback
from remoting.requests.query import CheckRocksdbCqWriteProgress
from remoting.requests.timers import SwitchTimerEngine

handlers: HandlerTable[Broker] = HandlerTable()

COLD_DATA: Final = {
    "runtimeTable": {},
    "configTable": {},
    "cgColdReadThreshold": 3_145_728,
    "globalColdReadThreshold": 104_857_600,
    "globalAcc": 0,
}
"""The official answer while cold data is not limited. Source: ColdDataCgCtrService.getColdDataFlowCtrInfo, 5.4.0."""
READ_NORMALLY, READ_RANDOMLY = 0, 1
"""Advice to the operating system. Source: LibC.MADV_NORMAL, MADV_RANDOM, 5.4.0."""
FILES_ENGINE, ROCKSDB_ENGINE = "F", "R"
"""Engines of timer messages. Source: MessageConst.TIMER_ENGINE_FILE_TIME_WHEEL and …_ROCKSDB_TIMELINE, 5.4.0."""


@GetColdDataFlowCtrInfo.on(handlers)
def get_cold_data_info(broker: Broker, request: GetColdDataFlowCtrInfo) -> Header:
    """Return that reads of cold data are not limited."""
    reply = Header()
    reply.body = json.dumps(COLD_DATA).encode()
    return reply


@UpdateColdDataFlowCtrConfig.on(handlers)
def update_cold_data_limit(broker: Broker, request: UpdateColdDataFlowCtrConfig) -> Header:
    """Accept a limit, which has no effect while cold data is not limited, in either server."""
    return _with_remark("coldDataFlowControlEnable is false: the limit has no effect; quotas limit all reads")


@RemoveColdDataFlowCtrConfig.on(handlers)
def remove_cold_data_limit(broker: Broker, request: RemoveColdDataFlowCtrConfig) -> None:
    """Remove nothing: no limit is in effect."""


@SetCommitlogReadMode.on(handlers)
def set_read_ahead(broker: Broker, request: SetCommitlogReadMode) -> Header:
    """Accept the advice of sequential reads, on which this broker relies; refuse that of random reads.

    Source: AdminBrokerProcessor.setCommitLogReadaheadMode, 5.4.0.
    """
    mode = request.read_ahead_mode
    if mode is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed")
    if mode == READ_RANDOMLY:
        remark = "set commitlog readahead mode 1 (random) is not served: files are always read ahead"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
    if mode != READ_NORMALLY:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
    return _with_remark(f"set commitlog readahead mode success, mode: {mode}")


@PopRollback.on(handlers)
def move_pop_records(broker: Broker, request: PopRollback) -> None:
    """Move nothing: pop records are in the revive topic already. Source: transferPopToFsStore, 5.4.0."""


@CheckRocksdbCqWriteProgress.on(handlers)
def check_rocksdb_queues(broker: Broker, request: CheckRocksdbCqWriteProgress) -> Header:
    """Answer that all is well: without RocksDB there is nothing to compare the queues with.

    The official broker answers that it has begun, and writes the result to its log.
    """
    reply = Header()
    reply.body = json.dumps({"checkResult": "queues are in files only", "checkStatus": 0}).encode()
    return reply


@SwitchTimerEngine.on(handlers)
def switch_timer_engine(broker: Broker, request: SwitchTimerEngine) -> Header:
    """Accept the engine of files, which ends `timerStopEnqueue`; refuse that of RocksDB as without its setting.

    Source: AdminBrokerProcessor.switchTimerEngine, 5.4.0.
    """
    engine = request.engine_type
    if not broker.config.store.timer_wheel_enable:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "broker timerWheelEnable is false")
    if engine not in (FILES_ENGINE, ROCKSDB_ENGINE):
        raise RequestError(ResponseCode.INVALID_PARAMETER, "param error")
    if engine == ROCKSDB_ENGINE:
        remark = "timerUseRocksDB muse be configured true when broker start"
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
    apply_broker_config(broker, with_values(broker.config, {"timerStopEnqueue": False}))
    return _with_remark("switch timer engine success")


def _with_remark(remark: str) -> Header:
    reply = Header()
    reply.remark = remark
    return reply
