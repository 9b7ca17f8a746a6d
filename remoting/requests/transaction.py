"""Requests of transactional messages."""

from remoting.declare import Request, RpcRequest, i32, i64


class EndTransaction(RpcRequest[None], code=37):
    """Commit (8), roll back (12) or leave open (0) a half message. Source: EndTransactionProcessor."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: i64
    commit_log_offset: i64
    commit_or_rollback: i32
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None


class CheckTransactionState(RpcRequest[None], code=39):
    """Ask a producer, oneway, to commit or roll back; the body is the half message. Sent by the broker."""

    topic: str | None = None
    tran_state_table_offset: i64
    commit_log_offset: i64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessage(Request[None], code=323):
    """Check a half message again that was given up. Source: AdminBrokerProcessor.resumeCheckHalfMessage."""

    topic: str | None = None
    msg_id: str | None = None
