"""Requests of replicas, which find a master that does not replicate.

An official replica fetches the tables of its master by requests that this broker answers, and its messages over a
connection to the HA port, which this broker does not have. So it would run, listed in `clusterList`, and stay empty.
The broker says so in its answers and in its log; `gateway/namesrv/processors.py` does when the replica registers.
"""

import logging
from typing import Final

from codec.constants import ResponseCode
from gateway.broker.broker import Broker
from remoting.connection import Connection
from remoting.connection_state import StateSlot
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.ha import ExchangeBrokerHaInfo, ResetMasterFlushOffset
from remoting.requests.pop import GetAllMessageRequestMode, GetAllMessageRequestModeReply

log = logging.getLogger(__name__)
handlers: HandlerTable[Broker] = HandlerTable()

NO_REPLICATION: Final = (
    "does not replicate, so its replicas stay empty; give the replica a brokerName of its own"
)
_IS_LOGGED: Final = StateSlot[bool]("replica is logged")


def _note_replica(broker: Broker, connection: Connection) -> str:
    """Log once per connection that a replica gets no data, and return the remark for its answer."""
    remark = f"{broker.config.broker_name} {NO_REPLICATION}"
    if _IS_LOGGED not in connection.state:
        connection.state[_IS_LOGGED] = True
        log.warning(
            "a replica gets no data",
            extra={
                "broker": broker.config.broker_name,
                "remote": connection.remote[0],
                "reason": NO_REPLICATION,
            },
        )
    return remark


@GetAllMessageRequestMode.on(handlers)
def get_all_message_request_modes(
    broker: Broker, request: GetAllMessageRequestMode, call: Call
) -> GetAllMessageRequestModeReply:
    """Return every request mode that was set. Only replicas ask for them, every few seconds.

    Source: AdminBrokerProcessor.getAllMessageRequestMode, SlaveSynchronize, 5.4.0.
    """
    reply = GetAllMessageRequestModeReply(data=broker.pop.request_modes.snapshot())
    reply.remark = _note_replica(broker, call.connection)
    return reply


@ResetMasterFlushOffset.on(handlers)
def reset_master_flush_offset(broker: Broker, request: ResetMasterFlushOffset) -> None:
    """Answer with success and do nothing, as every official master does.

    Source: AdminBrokerProcessor.resetMasterFlushOffset, 5.4.0.
    """


@ExchangeBrokerHaInfo.on(handlers)
def exchange_ha_info(broker: Broker, request: ExchangeBrokerHaInfo, call: Call) -> None:
    """Refuse the address exchange of a replica that acts as master. Source: AdminBrokerProcessor, 5.4.0."""
    raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _note_replica(broker, call.connection))
