"""Pulls on one connection, several under way at once, and their answers in order.

Each range is cut into pieces that are asked for before it is known how much an answer brings. An answer that brings
less than its piece leaves a rest, which is asked for next; nothing is asked for or brought twice. After a failure the
pieces that were not answered are asked for again, on a new connection to wherever the broker is by then.

No pull commits anything, registers a consumer or waits at the broker.

Not responsible for what is in the answers.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from codec.command import Command
from codec.constants import ResponseCode
from codec.errors import FrameError
from codec.message import Buffer
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.read_only_pull import read_only_pull
from remoting.requests.pull import PullMessage, PullMessageReply
from spark.cluster import ClusterClient, Queue
from spark.endpoint import TRANSIENT_CODES, Connections
from spark.errors import EndpointError
from spark.pull.loss_reporter import LossReporter, describe_queue
from spark.pull.read_spec import OffsetRange, ReadSpec

MAX_HELD_BYTES: Final = 16 << 20
"""Answers that came and that are expected are about so many bytes together, or one at a time."""
_DEFAULT_ANSWER_BYTES: Final = 256 * 1024
"""What a broker puts in an answer if it is not told otherwise."""
_MAX_STRIDE_MESSAGES: Final = 1 << 20
_FULL_ANSWERS_BEFORE_GROWTH: Final = 32
"""After so many answers in a row that brought all that was asked for, more is."""
_REMOVING_REMARK: Final = "MESSAGE_WAS_REMOVING"
_RESET_REMARK: Final = "OFFSET_RESET"
"""Remarks of answers that nothing but another try helps with. Source: GetMessageStatus, PullMessageProcessor, 5.4.0."""


@dataclass(slots=True)
class PulledRange:
    """What one answer said about offsets [start, end) of a range: messages end to end, or none."""

    requested: OffsetRange
    start: int
    end: int
    body: bytes = b""


@dataclass(slots=True)
class _PendingPull:
    requested: OffsetRange
    start: int
    end: int
    opaque: int | None = None
    answer: PulledRange | None = None
    attempts: int = 0


class PullPipeline:
    """Reads ranges that one broker has, in the order given."""

    def __init__(
        self, spec: ReadSpec, ranges: Sequence[OffsetRange], connections: Connections, losses: LossReporter
    ) -> None:
        self._spec, self._connections, self._losses = spec, connections, losses
        self._broker, self._address = ranges[0].broker, ranges[0].address
        self._pieces = [_PendingPull(each, each.start, each.end) for each in ranges if each.start < each.end]
        self._waiting: dict[int, _PendingPull] = {}
        self._stride, self._full = spec.pull_batch_size, 0
        self._answer_bytes = _DEFAULT_ANSWER_BYTES
        self._most_bytes = max(_DEFAULT_ANSWER_BYTES, spec.arrow_batch_bytes // spec.pipeline_depth)
        self._failures = 0
        self._usual_of: OffsetRange | None = None
        self._usual: dict[str, str] = {}

    def __iter__(self) -> Iterator[PulledRange]:
        """Every offset of every range is in one chunk, in order; those that are lost are in none.

        Raises EndpointError, DataLossError.
        """
        while self._pieces:
            self._exchange_once()
            while self._pieces and self._pieces[0].answer is not None:
                yield self._pieces.pop(0).answer  # type: ignore[misc]

    def _exchange_once(self) -> None:
        """Asks for what may be asked for and takes one answer."""
        try:
            client = self._connections.get_client(self._address)
            self._send_pulls(client)
            self._handle_answer(client.receive_next_answer())
        except (RemotingClosed, RemotingTimeout, EndpointError) as error:
            self._reconnect_after(error)
        except (KeyError, ValueError, FrameError) as error:
            raise EndpointError(f"broker {self._broker}: its answer cannot be read: {error!r}") from error

    # -- asking -----------------------------------------------------------------------------------------------------

    def _send_pulls(self, client: BlockingClient) -> None:
        """Fills up what is under way, some at a time: requests of one write are answered in one write."""
        room = self._pending_limit()
        if len(self._waiting) > room // 2:
            return
        asked = list(self._next_unsent(room))
        if not asked:
            return
        commands = [self._build_command(piece) for piece in asked]
        for piece, opaque in zip(asked, client.start_commands(commands), strict=True):
            piece.opaque = opaque
            self._waiting[opaque] = piece

    def _pending_limit(self) -> int:
        """How many pieces may be under way or wait for their turn."""
        return max(1, min(self._spec.pipeline_depth, MAX_HELD_BYTES // self._answer_bytes))

    def _next_unsent(self, limit: int) -> Iterator[_PendingPull]:
        """The next pieces to ask for, cut to size, among the first that there is room for."""
        at = 0
        while at < min(limit, len(self._pieces)):
            piece = self._pieces[at]
            if piece.opaque is None and piece.answer is None:
                self._split_pull(at, piece.start + self._stride)
                yield piece
            at += 1

    def _split_pull(self, index: int, end: int) -> None:
        """Makes two of a piece that reaches further."""
        piece = self._pieces[index]
        if end < piece.end:
            self._pieces.insert(index + 1, _PendingPull(piece.requested, end, piece.end))
            piece.end = end

    def _build_command(self, pull: _PendingPull) -> Command:
        """A pull: made once for each range, since only two fields differ."""
        where = pull.requested
        if where is not self._usual_of:
            self._usual_of, self._usual = where, self._build_request(where).to_ext()
        count = min(self._spec.pull_batch_size, pull.end - pull.start)
        ext = {**self._usual, "queueOffset": str(pull.start), "maxMsgNums": str(count)}
        return Command(PullMessage.code, ext=ext)

    def _build_request(self, requested: OffsetRange) -> PullMessage:
        return read_only_pull(
            requested.topic,
            requested.queue_id,
            requested.start,
            1,
            subscription=self._spec.expression,
            expression_type=self._spec.expression_type,
            max_bytes=self._most_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------------------

    def _handle_answer(self, command: Command) -> None:
        piece = self._waiting.pop(command.opaque, None)
        if piece is None:
            return
        piece.opaque = None
        if command.code in TRANSIENT_CODES:
            self._retry_pull(piece, command.remark or f"code {command.code}")
            return
        if command.code == 0 and "offsetDelta" not in command.ext:
            self._failures = 0
            self._handle_found(piece, int(command.ext["nextBeginOffset"]), command.body)
            return
        try:
            reply = _ANY.read_reply(command)
        except RequestError as error:
            raise _PermanentFailure(f"{describe_queue(piece.requested)}: {error}") from error
        self._failures = 0
        if reply.offset_delta:
            raise _PermanentFailure(
                f"{describe_queue(piece.requested)}: reading static topics is not supported: "
                "their queues move between brokers"
            )
        if reply.code == ResponseCode.SUCCESS:
            self._handle_found(piece, reply.next_begin_offset, reply.body)
        else:
            self._handle_not_found(piece, reply)

    def _handle_found(self, pull: _PendingPull, next_offset: int, body: Buffer) -> None:
        if next_offset <= pull.start:
            raise _PermanentFailure(
                f"{describe_queue(pull.requested)}: the broker goes from {pull.start} to {next_offset}"
            )
        self._answer_bytes = max(len(body), self._answer_bytes * 7 // 8, 1)
        self._adapt_stride(pull, next_offset)
        self._complete_pull(pull, next_offset, body)

    def _adapt_stride(self, pull: _PendingPull, next_offset: int) -> None:
        """Asks for as much as the last answer brought, and now and then for more."""
        advance = next_offset - pull.start
        if next_offset < pull.end:
            self._stride, self._full = max(1, advance), 0
        elif advance >= self._stride:
            self._full += 1
            # A filter may look at many more than it lets through, and how many that is shows only here.
            most = _MAX_STRIDE_MESSAGES if self._spec.is_filtered else self._spec.pull_batch_size
            if self._stride < most and (next_offset > pull.end or self._full >= _FULL_ANSWERS_BEFORE_GROWTH):
                self._stride, self._full = min(2 * self._stride, most), 0

    def _complete_pull(self, pull: _PendingPull, next_offset: int, body: Buffer = b"") -> None:
        """The answer speaks for offsets up to `following`; what is left of its piece comes next."""
        self._split_pull(self._pieces.index(pull), next_offset)
        pull.answer = PulledRange(pull.requested, pull.start, pull.end, bytes(body))

    def _handle_not_found(self, pull: _PendingPull, reply: PullMessageReply) -> None:
        """Nothing matched up to where it goes on, or something is missing."""
        following = reply.next_begin_offset
        holds = f"the queue holds {reply.min_offset} to {reply.max_offset - 1}"
        if reply.max_offset <= reply.min_offset:
            holds = "the queue is empty"
        if reply.remark == _REMOVING_REMARK or reply.remark == _RESET_REMARK or following <= pull.start:
            # Right after a start, or while files are deleted, this may be another moment's answer.
            up_to = following if following > pull.start else pull.requested.end
            self._retry_pull(pull, holds, lost_up_to=up_to)
        elif reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._spec.is_filtered:
            self._adapt_stride(pull, following)
            self._complete_pull(pull, following)
        else:
            self._mark_lost(pull, following, holds)

    def _retry_pull(self, pull: _PendingPull, reason: str, *, lost_up_to: int | None = None) -> None:
        """Asks for a piece again after a pause; when it was asked for too often it is lost, or the task fails."""
        pull.attempts += 1
        endpoint = self._spec.endpoint
        if pull.attempts <= endpoint.retries:
            time.sleep(endpoint.retry_interval_s * 2 ** (pull.attempts - 1))
        elif lost_up_to is not None:
            self._mark_lost(pull, lost_up_to, reason)
        else:
            raise _PermanentFailure(
                f"{describe_queue(pull.requested)}: {reason} (asked {pull.attempts} times)"
            )

    def _mark_lost(self, pull: _PendingPull, next_offset: int, reason: str) -> None:
        """Offsets up to `following` are gone: of this piece, and of those nobody asked for yet."""
        for each in self._pieces[self._pieces.index(pull) :]:
            if each.requested != pull.requested or each.start >= next_offset:
                break
            each.attempts = pull.attempts  # If it is under way, its answer will be the same.
            if each.opaque is None and each.answer is None:
                end = min(next_offset, each.end)
                self._losses.report_missing(each.requested, each.start, end, reason)
                self._complete_pull(each, end)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _reconnect_after(self, error: Exception) -> None:
        """On a new connection, to where the name servers say the broker is. Raises EndpointError after too many."""
        if isinstance(error, _PermanentFailure):
            raise EndpointError(str(error)) from error
        self._connections.drop_client(self._address)
        for piece in self._waiting.values():
            piece.opaque = None
        self._waiting.clear()
        endpoint = self._spec.endpoint
        self._failures += 1
        if self._failures > endpoint.retries:
            host, port = self._address
            raise EndpointError(
                f"broker {self._broker} at {host}:{port}: {error} (tried {self._failures} times)"
            ) from error
        time.sleep(endpoint.retry_interval_s * 2 ** (self._failures - 1))
        self._refresh_address()

    def _refresh_address(self) -> None:
        """Takes the address the broker has now; while nobody knows one, the old one stays."""
        where = self._pieces[0].requested
        cluster = ClusterClient(replace(self._spec.endpoint, retries=0))
        try:
            queues = cluster.find_queues([where.topic])
        except EndpointError:
            return
        finally:
            cluster.close()
        self._address = queues.get(Queue(where.topic, where.broker, where.queue_id), self._address)


class _PermanentFailure(EndpointError):
    """What another connection will not change."""


_ANY: Final = read_only_pull("", 0, 0, 0)
