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
from remoting.reading import reading_pull
from remoting.requests.pull import PullMessage, PullMessageReply
from spark.cluster import Cluster, Queue
from spark.endpoint import FLEETING, Connections
from spark.errors import EndpointError
from spark.pull.losses import Losses, place
from spark.pull.spec import Range, ReadSpec

HELD_BYTES: Final = 16 << 20
"""Answers that came and that are expected are about so many bytes together, or one at a time."""
_MIN_ANSWER_BYTES: Final = 256 * 1024
"""What a broker puts in an answer if it is not told otherwise."""
_MOST_STRIDE: Final = 1 << 20
_FULL_BEFORE_MORE: Final = 32
"""After so many answers in a row that brought all that was asked for, more is."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"
_RESET: Final = "OFFSET_RESET"
"""Remarks of answers that nothing but another try helps with. Source: GetMessageStatus, PullMessageProcessor, 5.4.0."""


@dataclass(slots=True)
class Chunk:
    """What one answer said about offsets [start, end) of a range: messages end to end, or none."""

    where: Range
    start: int
    end: int
    body: bytes = b""


@dataclass(slots=True)
class _Piece:
    where: Range
    start: int
    end: int
    opaque: int | None = None
    answer: Chunk | None = None
    tries: int = 0


class Pulls:
    """Reads ranges that one broker has, in the order given."""

    def __init__(
        self, spec: ReadSpec, ranges: Sequence[Range], connections: Connections, losses: Losses
    ) -> None:
        self._spec, self._connections, self._losses = spec, connections, losses
        self._broker, self._address = ranges[0].broker, ranges[0].address
        self._pieces = [_Piece(each, each.start, each.end) for each in ranges if each.start < each.end]
        self._waiting: dict[int, _Piece] = {}
        self._stride, self._full = spec.pull_batch_size, 0
        self._answer_bytes = _MIN_ANSWER_BYTES
        self._most_bytes = max(_MIN_ANSWER_BYTES, spec.arrow_batch_bytes // spec.pipeline_depth)
        self._failures = 0
        self._usual_of: Range | None = None
        self._usual: dict[str, str] = {}

    def __iter__(self) -> Iterator[Chunk]:
        """Every offset of every range is in one chunk, in order; those that are lost are in none.

        Raises EndpointError, DataLossError.
        """
        while self._pieces:
            self._step()
            while self._pieces and self._pieces[0].answer is not None:
                yield self._pieces.pop(0).answer  # type: ignore[misc]

    def _step(self) -> None:
        """Asks for what may be asked for and takes one answer."""
        try:
            client = self._connections.to(self._address)
            self._ask(client)
            self._take(client.next_answer())
        except (RemotingClosed, RemotingTimeout, EndpointError) as error:
            self._start_again(error)
        except (KeyError, ValueError, FrameError) as error:
            raise EndpointError(f"broker {self._broker}: its answer cannot be read: {error!r}") from error

    # -- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, client: BlockingClient) -> None:
        """Fills up what is under way, some at a time: requests of one write are answered in one write."""
        room = self._room()
        if len(self._waiting) > room // 2:
            return
        asked = list(self._unasked(room))
        if not asked:
            return
        commands = [self._command(piece) for piece in asked]
        for piece, opaque in zip(asked, client.begin(commands), strict=True):
            piece.opaque = opaque
            self._waiting[opaque] = piece

    def _room(self) -> int:
        """How many pieces may be under way or wait for their turn."""
        return max(1, min(self._spec.pipeline_depth, HELD_BYTES // self._answer_bytes))

    def _unasked(self, room: int) -> Iterator[_Piece]:
        """The next pieces to ask for, cut to size, among the first that there is room for."""
        at = 0
        while at < min(room, len(self._pieces)):
            piece = self._pieces[at]
            if piece.opaque is None and piece.answer is None:
                self._cut(at, piece.start + self._stride)
                yield piece
            at += 1

    def _cut(self, at: int, end: int) -> None:
        """Makes two of a piece that reaches further."""
        piece = self._pieces[at]
        if end < piece.end:
            self._pieces.insert(at + 1, _Piece(piece.where, end, piece.end))
            piece.end = end

    def _command(self, piece: _Piece) -> Command:
        """A pull: made once for each range, since only two fields differ."""
        where = piece.where
        if where is not self._usual_of:
            self._usual_of, self._usual = where, self._pull(where).to_ext()
        count = min(self._spec.pull_batch_size, piece.end - piece.start)
        ext = {**self._usual, "queueOffset": str(piece.start), "maxMsgNums": str(count)}
        return Command(PullMessage.code, ext=ext)

    def _pull(self, where: Range) -> PullMessage:
        return reading_pull(
            where.topic,
            where.queue_id,
            where.start,
            1,
            subscription=self._spec.expression,
            expression_type=self._spec.expression_type,
            max_bytes=self._most_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        piece = self._waiting.pop(command.opaque, None)
        if piece is None:
            return
        piece.opaque = None
        if command.code in FLEETING:
            self._again(piece, command.remark or f"code {command.code}")
            return
        if command.code == 0 and "offsetDelta" not in command.ext:
            self._failures = 0
            self._found(piece, int(command.ext["nextBeginOffset"]), command.body)
            return
        try:
            reply = _ANY.read_reply(command)
        except RequestError as error:
            raise _Refused(f"{place(piece.where)}: {error}") from error
        self._failures = 0
        if reply.offset_delta:
            raise _Refused(
                f"{place(piece.where)}: the queues of static topics move between brokers: not readable here"
            )
        if reply.code == ResponseCode.SUCCESS:
            self._found(piece, reply.next_begin_offset, reply.body)
        else:
            self._not_found(piece, reply)

    def _found(self, piece: _Piece, following: int, body: Buffer) -> None:
        if following <= piece.start:
            raise _Refused(f"{place(piece.where)}: the broker goes from {piece.start} to {following}")
        self._answer_bytes = max(len(body), self._answer_bytes * 7 // 8, 1)
        self._adapt(piece, following)
        self._done(piece, following, body)

    def _adapt(self, piece: _Piece, following: int) -> None:
        """Asks for as much as the last answer brought, and now and then for more."""
        advance = following - piece.start
        if following < piece.end:
            self._stride, self._full = max(1, advance), 0
        elif advance >= self._stride:
            self._full += 1
            # A filter may look at many more than it lets through, and how many that is shows only here.
            most = _MOST_STRIDE if self._spec.is_filtered else self._spec.pull_batch_size
            if self._stride < most and (following > piece.end or self._full >= _FULL_BEFORE_MORE):
                self._stride, self._full = min(2 * self._stride, most), 0

    def _done(self, piece: _Piece, following: int, body: Buffer = b"") -> None:
        """The answer speaks for offsets up to `following`; what is left of its piece comes next."""
        self._cut(self._pieces.index(piece), following)
        piece.answer = Chunk(piece.where, piece.start, piece.end, bytes(body))

    def _not_found(self, piece: _Piece, reply: PullMessageReply) -> None:
        """Nothing matched up to where it goes on, or something is missing."""
        following = reply.next_begin_offset
        holds = f"the queue holds {reply.min_offset} to {reply.max_offset - 1}"
        if reply.max_offset <= reply.min_offset:
            holds = "the queue is empty"
        if reply.remark == _REMOVING or reply.remark == _RESET or following <= piece.start:
            # Right after a start, or while files are deleted, this may be another moment's answer.
            up_to = following if following > piece.start else piece.where.end
            self._again(piece, holds, lost_up_to=up_to)
        elif reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._spec.is_filtered:
            self._adapt(piece, following)
            self._done(piece, following)
        else:
            self._lost(piece, following, holds)

    def _again(self, piece: _Piece, reason: str, *, lost_up_to: int | None = None) -> None:
        """Asks for a piece again after a pause; when it was asked for too often it is lost, or the task fails."""
        piece.tries += 1
        endpoint = self._spec.endpoint
        if piece.tries <= endpoint.retries:
            time.sleep(endpoint.retry_interval_s * 2 ** (piece.tries - 1))
        elif lost_up_to is not None:
            self._lost(piece, lost_up_to, reason)
        else:
            raise _Refused(f"{place(piece.where)}: {reason} (asked {piece.tries} times)")

    def _lost(self, piece: _Piece, following: int, reason: str) -> None:
        """Offsets up to `following` are gone: of this piece, and of those nobody asked for yet."""
        for each in self._pieces[self._pieces.index(piece) :]:
            if each.where != piece.where or each.start >= following:
                break
            each.tries = piece.tries  # If it is under way, its answer will be the same.
            if each.opaque is None and each.answer is None:
                end = min(following, each.end)
                self._losses.gone(each.where, each.start, end, reason)
                self._done(each, end)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _start_again(self, error: Exception) -> None:
        """On a new connection, to where the name servers say the broker is. Raises EndpointError after too many."""
        if isinstance(error, _Refused):
            raise EndpointError(str(error)) from error
        self._connections.drop(self._address)
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
        self._look_up()

    def _look_up(self) -> None:
        """Takes the address the broker has now; while nobody knows one, the old one stays."""
        where = self._pieces[0].where
        cluster = Cluster(replace(self._spec.endpoint, retries=0))
        try:
            queues = cluster.queues([where.topic])
        except EndpointError:
            return
        finally:
            cluster.close()
        self._address = queues.get(Queue(where.topic, where.broker, where.queue_id), self._address)


class _Refused(EndpointError):
    """What another connection will not change."""


_ANY: Final = reading_pull("", 0, 0, 0)
