"""Pull offset ranges over one connection, with several requests in flight, and return the answers in order.

Theory of operation: each range is split into pulls before the size of any answer is known. If an answer covers fewer
offsets than its pull asked for, the remaining ones become a new pull that is sent next; nothing is requested or
returned twice. The stride (offsets per pull) follows the answers: it shrinks to the length of a short answer, and
doubles after a run of full ones. `_pulls` always lists, in offset order, everything not yet returned. That makes a
connection failure simple: pulls without an answer are sent again on a new connection, to the address that the name
servers have for the broker by then.

No pull commits an offset, registers a consumer, or waits at the broker.
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
from remoting.requests.pull import PullMessage, PullMessageReply, read_only_pull
from spark.cluster import ClusterClient, Queue
from spark.endpoint import TRANSIENT_CODES, Connections
from spark.errors import EndpointError
from spark.pull.loss_reporter import LossReporter, describe_queue
from spark.pull.read_spec import OffsetRange, ReadSpec

MAX_HELD_BYTES: Final = 16 << 20
"""Approximate limit on the bytes of answers received and expected. At least one pull is always allowed."""
_DEFAULT_ANSWER_BYTES: Final = 256 * 1024
"""Maximum answer size of a broker, unless a pull asks for more."""
_MAX_STRIDE_MESSAGES: Final = 1 << 20
_FULL_ANSWERS_BEFORE_GROWTH: Final = 32
"""The stride doubles after this many consecutive answers that covered their whole pull."""
_REMOVING_REMARK: Final = "MESSAGE_WAS_REMOVING"
_RESET_REMARK: Final = "OFFSET_RESET"
"""Remarks of answers for which only a retry helps. Source: GetMessageStatus, PullMessageProcessor, 5.4.0."""


@dataclass(slots=True)
class PulledRange:
    """An answer for offsets [start, end) of a requested range: messages end to end, or none."""

    requested: OffsetRange
    start: int
    end: int
    body: bytes = b""


@dataclass(slots=True)
class _PendingPull:
    """A pull for [start, end): unsent (no opaque), in flight, or answered and waiting for its turn."""

    requested: OffsetRange
    start: int
    end: int
    opaque: int | None = None
    answer: PulledRange | None = None
    attempts: int = 0


class PullPipeline:
    """Reads the offset ranges of one broker, in the given order."""

    def __init__(
        self, spec: ReadSpec, ranges: Sequence[OffsetRange], connections: Connections, losses: LossReporter
    ) -> None:
        self._spec, self._connections, self._losses = spec, connections, losses
        self._broker, self._address = ranges[0].broker, ranges[0].address
        self._pulls = [
            _PendingPull(requested, requested.start, requested.end)
            for requested in ranges
            if requested.start < requested.end
        ]
        self._in_flight: dict[int, _PendingPull] = {}
        self._stride, self._full_answers = spec.pull_batch_size, 0
        self._answer_bytes = _DEFAULT_ANSWER_BYTES
        self._max_answer_bytes = max(_DEFAULT_ANSWER_BYTES, spec.arrow_batch_bytes // spec.pipeline_depth)
        self._failures = 0
        self._template_range: OffsetRange | None = None
        self._template_fields: dict[str, str] = {}

    def __iter__(self) -> Iterator[PulledRange]:
        """Yield answers in order that cover every offset of every range, except those reported as lost.

        Raises EndpointError, DataLossError.
        """
        while self._pulls:
            self._exchange_once()
            while self._pulls and self._pulls[0].answer is not None:
                yield self._pulls.pop(0).answer  # type: ignore[misc]

    def _exchange_once(self) -> None:
        """Send the pulls that the limits allow, and handle one answer."""
        try:
            client = self._connections.get_client(self._address)
            self._send_pulls(client)
            self._handle_answer(client.receive_next_answer())
        except (RemotingClosed, RemotingTimeout, EndpointError) as error:
            self._reconnect_after(error)
        except (KeyError, ValueError, FrameError) as error:
            raise EndpointError(f"broker {self._broker}: its answer cannot be read: {error!r}") from error

    # -- sending ----------------------------------------------------------------------------------------------------

    def _send_pulls(self, client: BlockingClient) -> None:
        """Fill up the pipeline, several pulls at a time: a broker answers pulls of one write in one write."""
        limit = self._pending_limit()
        if len(self._in_flight) > limit // 2:
            return
        pulls = list(self._next_unsent(limit))
        if not pulls:
            return
        commands = [self._build_command(pull) for pull in pulls]
        for pull, opaque in zip(pulls, client.start_commands(commands), strict=True):
            pull.opaque = opaque
            self._in_flight[opaque] = pull

    def _pending_limit(self) -> int:
        """Return the maximum number of pulls that are in flight, or answered and waiting for their turn."""
        return max(1, min(self._spec.pipeline_depth, MAX_HELD_BYTES // self._answer_bytes))

    def _next_unsent(self, limit: int) -> Iterator[_PendingPull]:
        """Yield the unsent pulls among the first `limit`, each cut to the stride."""
        at = 0
        while at < min(limit, len(self._pulls)):
            pull = self._pulls[at]
            if pull.opaque is None and pull.answer is None:
                self._split_pull(at, pull.start + self._stride)
                yield pull
            at += 1

    def _split_pull(self, index: int, end: int) -> None:
        """Split a pull that reaches beyond `end` into two."""
        pull = self._pulls[index]
        if end < pull.end:
            self._pulls.insert(index + 1, _PendingPull(pull.requested, end, pull.end))
            pull.end = end

    def _build_command(self, pull: _PendingPull) -> Command:
        """Build the command of a pull. The template is made once per range, as only two fields differ between pulls."""
        requested = pull.requested
        if requested is not self._template_range:
            self._template_range, self._template_fields = requested, self._build_request(requested).to_ext()
        count = min(self._spec.pull_batch_size, pull.end - pull.start)
        ext = {**self._template_fields, "queueOffset": str(pull.start), "maxMsgNums": str(count)}
        return Command(PullMessage.code, ext=ext)

    def _build_request(self, requested: OffsetRange) -> PullMessage:
        return read_only_pull(
            requested.topic,
            requested.queue_id,
            requested.start,
            1,
            subscription=self._spec.expression,
            expression_type=self._spec.expression_type,
            max_bytes=self._max_answer_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------------------

    def _handle_answer(self, command: Command) -> None:
        pull = self._in_flight.pop(command.opaque, None)
        if pull is None:
            return
        pull.opaque = None
        if command.code in TRANSIENT_CODES:
            self._retry_pull(pull, command.remark or f"code {command.code}")
            return
        # The usual answer needs two fields only, so the parsing of all header fields is saved.
        if command.code == 0 and "offsetDelta" not in command.ext:
            self._failures = 0
            self._handle_found(pull, int(command.ext["nextBeginOffset"]), command.body)
            return
        try:
            reply = _REPLY_PARSER.read_reply(command)
        except RequestError as error:
            raise _PermanentFailure(f"{describe_queue(pull.requested)}: {error}") from error
        self._failures = 0
        if reply.offset_delta:
            raise _PermanentFailure(
                f"{describe_queue(pull.requested)}: reading static topics is not supported: "
                "their queues move between brokers"
            )
        if reply.code == ResponseCode.SUCCESS:
            self._handle_found(pull, reply.next_begin_offset, reply.body)
        else:
            self._handle_not_found(pull, reply)

    def _handle_found(self, pull: _PendingPull, next_offset: int, body: Buffer) -> None:
        if next_offset <= pull.start:
            raise _PermanentFailure(
                f"{describe_queue(pull.requested)}: the broker did not advance from offset {pull.start}: "
                f"its next offset is {next_offset}"
            )
        self._answer_bytes = max(len(body), self._answer_bytes * 7 // 8, 1)
        self._adapt_stride(pull, next_offset)
        self._complete_pull(pull, next_offset, body)

    def _adapt_stride(self, pull: _PendingPull, next_offset: int) -> None:
        """Shrink the stride to the length of a short answer; double it after a run of full ones."""
        advance = next_offset - pull.start
        if next_offset < pull.end:
            self._stride, self._full_answers = max(1, advance), 0
        elif advance >= self._stride:
            self._full_answers += 1
            # With a filter, an answer may cover far more offsets than it has messages, so the stride may outgrow the
            # number of messages per pull. How far an answer reaches is only known from the answer.
            max_stride = _MAX_STRIDE_MESSAGES if self._spec.is_filtered else self._spec.pull_batch_size
            if self._stride < max_stride and (
                next_offset > pull.end or self._full_answers >= _FULL_ANSWERS_BEFORE_GROWTH
            ):
                self._stride, self._full_answers = min(2 * self._stride, max_stride), 0

    def _complete_pull(self, pull: _PendingPull, next_offset: int, body: Buffer = b"") -> None:
        """Record an answer that covers offsets up to `next_offset`; the remaining offsets are pulled next."""
        self._split_pull(self._pulls.index(pull), next_offset)
        pull.answer = PulledRange(pull.requested, pull.start, pull.end, bytes(body))

    def _handle_not_found(self, pull: _PendingPull, reply: PullMessageReply) -> None:
        """Handle an answer without messages: the filter matched none, or messages are missing."""
        next_offset = reply.next_begin_offset
        queue_state = f"the queue holds {reply.min_offset} to {reply.max_offset - 1}"
        if reply.max_offset <= reply.min_offset:
            queue_state = "the queue is empty"
        if reply.remark == _REMOVING_REMARK or reply.remark == _RESET_REMARK or next_offset <= pull.start:
            # Right after a broker's start, or while it deletes files, this answer may be outdated: ask again first.
            up_to = next_offset if next_offset > pull.start else pull.requested.end
            self._retry_pull(pull, queue_state, lost_up_to=up_to)
        elif reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._spec.is_filtered:
            self._adapt_stride(pull, next_offset)
            self._complete_pull(pull, next_offset)
        else:
            self._mark_lost(pull, next_offset, queue_state)

    def _retry_pull(self, pull: _PendingPull, reason: str, *, lost_up_to: int | None = None) -> None:
        """Send a pull again after a pause; after too many attempts its offsets are lost, or the task fails."""
        pull.attempts += 1
        endpoint = self._spec.endpoint
        if pull.attempts <= endpoint.retries:
            time.sleep(endpoint.retry_interval_s * 2 ** (pull.attempts - 1))
        elif lost_up_to is not None:
            self._mark_lost(pull, lost_up_to, reason)
        else:
            raise _PermanentFailure(
                f"{describe_queue(pull.requested)}: {reason} (after {pull.attempts} attempts)"
            )

    def _mark_lost(self, pull: _PendingPull, next_offset: int, reason: str) -> None:
        """Report offsets up to `next_offset` as lost, for this pull and the following unsent ones of its range."""
        for following in self._pulls[self._pulls.index(pull) :]:
            if following.requested != pull.requested or following.start >= next_offset:
                break
            following.attempts = pull.attempts  # A pull in flight will get the same answer.
            if following.opaque is None and following.answer is None:
                end = min(next_offset, following.end)
                self._losses.report_missing(following.requested, following.start, end, reason)
                self._complete_pull(following, end)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _reconnect_after(self, error: Exception) -> None:
        """Reconnect to where the name servers say the broker is now. Raises EndpointError after too many failures."""
        if isinstance(error, _PermanentFailure):
            raise EndpointError(str(error)) from error
        self._connections.drop_client(self._address)
        for pull in self._in_flight.values():
            pull.opaque = None
        self._in_flight.clear()
        endpoint = self._spec.endpoint
        self._failures += 1
        if self._failures > endpoint.retries:
            host, port = self._address
            raise EndpointError(
                f"broker {self._broker} at {host}:{port}: {error} (after {self._failures} attempts)"
            ) from error
        time.sleep(endpoint.retry_interval_s * 2 ** (self._failures - 1))
        self._refresh_address()

    def _refresh_address(self) -> None:
        """Look up the broker's address; keep the old one while the name servers know none."""
        requested = self._pulls[0].requested
        cluster = ClusterClient(replace(self._spec.endpoint, retries=0))
        try:
            queues = cluster.find_queues([requested.topic])
        except EndpointError:
            return
        finally:
            cluster.close()
        self._address = queues.get(
            Queue(requested.topic, requested.broker, requested.queue_id), self._address
        )


class _PermanentFailure(EndpointError):
    """A failure that would repeat itself on a new connection."""


_REPLY_PARSER: Final = read_only_pull("", 0, 0, 0)
