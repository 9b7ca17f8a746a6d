"""Maps request codes to handlers: typed ones, and hand-tuned ones that work on raw commands.

A handler gets its request and the context that the table is bound to. `HandlerTable.bind` returns the handlers of one
server, `GuardedHandlers` puts the server's guards around them: access control, flow control and whatever else may
refuse or delay a request before its handler runs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from codec.command import Command, encode_response
from remoting.connection import Connection, Handler, encode_failure, refusal_of
from remoting.declare import Header, Request
from remoting.local_command import LocalCommand

Context = TypeVar("Context")
HandlerFactory = Callable[[Context], Handler]
"""Returns the handler for a code from a context; called once, when the table is bound."""

Protect = Callable[[int, Handler], Handler]
"""A guard: takes a request code and its handler, and returns the handler inside of a check.

A guard that does not concern the code returns the handler itself, so that requests of this code pay nothing for it.
"""


def leave_unprotected(_: int, handler: Handler) -> Handler:
    """Return the handler itself: the `Protect` of a server without access control."""
    return handler


class AnswersLater:
    """The result of a typed handler that answers through `Call.reply` afterwards."""


ANSWERS_LATER: Final = AnswersLater()

Outcome = Header | AnswersLater | BaseException | None
"""The value that a typed handler returned, or the exception that ended an asynchronous one."""
Finish = Callable[[Outcome], None]
"""The second half of an observer: called with the outcome of the request."""
Observe = Callable[[Connection, Command], Finish]
"""The first half of an observer: called before a typed handler, it returns the function for the outcome.

That function is not called for an exception of a synchronous handler, which the caller of the bound handler sees.
"""


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks before the handlers of a server, and observers of their outcomes, by request code."""

    protect: Protect = leave_unprotected
    observed: Mapping[int, Observe] = field(default_factory=dict)


NO_GUARD: Final = Guard()


class Call:
    """One request in progress, for handlers that need the connection or answer later."""

    __slots__ = ("command", "connection")

    def __init__(self, connection: Connection, command: Command) -> None:
        self.connection = connection
        self.command = command

    def reply(self, reply: Header | None) -> None:
        """Write the answer, or SYSTEM_ERROR if it cannot be encoded. Does nothing for a oneway request.

        Never raises, because the caller may be serving another peer.
        """
        if isinstance(self.command, LocalCommand):
            self.command.settle(reply)
        else:
            self.connection.answer_late(self.command, lambda: encode_reply(self.command, reply))

    def fail(self, error: Exception) -> None:
        """Write the refusal (or SYSTEM_ERROR) as the answer."""
        if isinstance(self.command, LocalCommand):
            self.command.settle(refusal_of(self.command, error))
        elif not self.command.is_oneway:
            self.connection.write(encode_failure(self.command, error))


def encode_reply(command: Command, reply: Header | None) -> bytes:
    """Encode an answer, always with a JSON header, as the official server does."""
    if reply is None:
        return encode_response(command.opaque, 0, None, b"", None)
    ext = reply.to_ext()
    return encode_response(command.opaque, reply.code, ext, reply.encode_body(), reply.remark)


class HandlerTable(Generic[Context]):
    """A table of handlers, filled by decorators, included in other tables and bound once to its context."""

    def __init__(self) -> None:
        self._raw: dict[int, HandlerFactory[Context]] = {}
        self._typed: dict[int, tuple[type[Request[Any]], Callable[..., Any]]] = {}

    def register_raw(self, *codes: int) -> Callable[[HandlerFactory[Context]], HandlerFactory[Context]]:
        """Decorate a function that takes the context and returns the handler of these codes.

        The handler has the form ``(connection, command) -> bytes | None``.
        """

        def register(choose: HandlerFactory[Context]) -> HandlerFactory[Context]:
            for code in codes:
                self._claim(code)
                self._raw[code] = choose
            return choose

        return register

    def register_typed(self, request_type: type[Request[Any]], function: Callable[..., Any]) -> None:
        """Register a typed handler; `Request.on` calls this."""
        self._claim(request_type.code)
        self._typed[request_type.code] = (request_type, function)

    def include(self, *tables: "HandlerTable[Context]") -> "HandlerTable[Context]":
        """Add all handlers of other tables. Raises ValueError when two answer the same code."""
        for table in tables:
            for code in table.request_codes():
                self._claim(code)
            self._raw.update(table._raw)
            self._typed.update(table._typed)
        return self

    def request_codes(self) -> set[int]:
        """Return the request codes that have a handler."""
        return self._raw.keys() | self._typed.keys()

    def _claim(self, code: int) -> None:
        if code in self._raw or code in self._typed:
            raise ValueError(f"request code {code} has two handlers")

    def bind(
        self, context: Context, observed: Mapping[int, Observe] = MappingProxyType({})
    ) -> dict[int, Handler]:
        """Return the handlers by code, with their context filled in, in the form that `Connection` takes.

        Observers of codes that are not in the table are never called. Raises ValueError for an observer of a code whose
        handler works on raw commands.
        """
        if raw := self._raw.keys() & observed.keys():
            raise ValueError(f"handlers that work on raw commands cannot be observed: {sorted(raw)}")
        bound: dict[int, Handler] = {code: choose(context) for code, choose in self._raw.items()}
        for code, (request_type, function) in self._typed.items():
            if code in observed:
                function = _observe_handler(function, observed[code])
            bound[code] = _bind_typed(context, request_type, function)
        return bound


class GuardedHandlers:
    """The handlers of one server, each inside of the guards that run before it.

    ``by_code`` is the table that connections use. Guards are applied when it is built, not when a request comes: a
    request passes the guards of its code and no others. A guard whose answer depends on settings must have
    `apply_guards` called when they change. ``applied`` is called after that, with these handlers.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        guards: Sequence[Protect],
        applied: Callable[["GuardedHandlers"], None] = lambda _: None,
    ) -> None:
        """Apply ``guards``, which are given in the order in which a request passes them."""
        self._unguarded = dict(handlers)
        self._guards = tuple(guards)
        self._applied = applied
        self._guards_by_code: dict[int, list[Protect]] = {}
        self.by_code: dict[int, Handler] = {}
        self.apply_guards()

    def replace(self, handlers: Mapping[int, Handler], guards: Sequence[Protect]) -> None:
        """Replace handlers and guards; connections that are open use them from the next request on."""
        self._unguarded = dict(handlers)
        self._guards = tuple(guards)
        for code in self.by_code.keys() - handlers.keys():
            del self.by_code[code]
        self.apply_guards()

    def apply_guards(self) -> None:
        """Build the handlers again, each inside of the guards that concern its code now."""
        # In place: every connection holds the table itself.
        for code, handler in self._unguarded.items():
            passed = self._guards_by_code[code] = []
            for guard in reversed(self._guards):
                guarded = guard(code, handler)
                if guarded is not handler:
                    passed.insert(0, guard)
                handler = guarded
            self.by_code[code] = handler
        self._applied(self)

    def guards_of(self, code: int) -> list[Protect]:
        """Return the guards that a request of this code passes now, in order."""
        return self._guards_by_code[code]


def _wants_call(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 2


def _observe_handler(function: Callable[..., Any], observe: Observe) -> Callable[..., Any]:
    """Return the typed handler with an observer around it, which gets the outcome of each request.

    An asynchronous handler may be cancelled, because the connection closed meanwhile: that is an outcome, too.
    """
    wants_call = _wants_call(function)

    def handle_observed(context: Any, request: Request[Any], call: Call) -> Any:
        finish = observe(call.connection, call.command)
        reply = function(context, request, call) if wants_call else function(context, request)
        finish(reply)
        return reply

    async def work_observed(context: Any, request: Request[Any], call: Call) -> Any:
        finish = observe(call.connection, call.command)
        try:
            reply = await (function(context, request, call) if wants_call else function(context, request))
        except BaseException as error:
            finish(error)
            raise
        finish(reply)
        return reply

    return work_observed if inspect.iscoroutinefunction(function) else handle_observed


def _bind_typed(context: Any, request_type: type[Request[Any]], function: Callable[..., Any]) -> Handler:
    wants_call = _wants_call(function)
    if inspect.iscoroutinefunction(function):
        return _bind_async(context, request_type, function, wants_call)
    parse = request_type.from_command

    def handle(connection: Connection, command: Command) -> bytes | None:
        # A caller in this process gets past the frame: its request and the reply stay typed.
        local = command if isinstance(command, LocalCommand) else None
        request = parse(command, connection.limits.max_json_values) if local is None else local.request
        extra = (Call(connection, command),) if wants_call else ()
        reply = function(context, request, *extra)
        if reply is ANSWERS_LATER:
            return None
        if local is not None:
            local.settle(reply)
            return None
        return encode_reply(command, reply)

    return handle


def _bind_async(
    context: Any, request_type: type[Request[Any]], function: Callable[..., Any], wants_call: bool
) -> Handler:
    async def work(call: Call, request: Request[Any]) -> None:
        try:
            reply = await (function(context, request, call) if wants_call else function(context, request))
        except Exception as error:  # noqa: BLE001 - the asynchronous half of the one place in Connection._dispatch
            call.fail(error)
        else:
            if reply is not ANSWERS_LATER:
                call.reply(reply)

    def handle(connection: Connection, command: Command) -> bytes | None:
        if isinstance(command, LocalCommand):
            request: Request[Any] = command.request
        else:
            request = request_type.from_command(command, connection.limits.max_json_values)
        connection.spawn(work, Call(connection, command), request)
        return None

    return handle
