"""The controllers that choose the masters of brokers: where they are, which one leads, and requests to that one.

Brokers in controller mode name their controllers in their settings, so a command finds them through any broker that
answers. That works for official brokers and controllers as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or
from gateway.admin.client import map_in_threads
from gateway.admin.errors import AdminError, NotFound, NotReached, Refused
from gateway.admin.server_config import parse_config
from gateway.admin.settings import split_addresses
from remoting.declare import Header, Request
from remoting.requests.admin import GetBrokerConfig
from remoting.requests.controller import (
    ControllerGetMetadataInfo,
    ControllerGetMetadataInfoReply,
    GetControllerConfig,
)

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

Reply = TypeVar("Reply", bound=Header | None)
Description = ControllerGetMetadataInfoReply | AdminError
"""The answer of a controller to what it is, or the reason why there is none."""

LOWEST_PRIORITY: Final = (1 << 31) - 1
"""Of a broker that does not set brokerElectionPriority. Source: BrokerConfig, 5.4.0."""
_TRUE: Final = "true"


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """The settings of one broker that matter for elections; ``controllers`` is empty outside of controller mode."""

    cluster: str = ""
    broker: str = ""
    controllers: tuple[str, ...] = ()
    priority: int = LOWEST_PRIORITY


def read_election_settings(client: "AdminClient", address: str) -> ElectionSettings:
    """Ask a broker for its settings."""
    values = parse_config(client.ask(address, GetBrokerConfig()).body, address)
    controllers: tuple[str, ...] = ()
    if values.get("enableControllerMode") == _TRUE:
        controllers = tuple(split_addresses(values.get("controllerAddr", "")))
    return ElectionSettings(
        values.get("brokerClusterName", ""),
        values.get("brokerName", ""),
        controllers,
        parse_integer_or(values.get("brokerElectionPriority", ""), LOWEST_PRIORITY),
    )


@dataclass(frozen=True, slots=True)
class ControlledNames:
    """Broker names that the same controllers look after."""

    controllers: tuple[str, ...]
    names: tuple[str, ...]


def find_controlled_names(
    client: "AdminClient", names: Sequence[str] = (), controllers: Iterable[str] = ()
) -> list[ControlledNames]:
    """Return the controllers of broker names, of all registered ones without ``names``.

    With ``controllers`` these are asked, and brokers are not. A name whose brokers are not in controller mode is left
    out. Raises NotFound for a name that is not registered, and AdminError if no broker of any name answers.
    """
    addresses = tuple(split_addresses(";".join(controllers)))
    if addresses:
        return [ControlledNames(addresses, tuple(names or client.masters))]
    names = list(names or client.masters)
    for name in names:
        client.master(name)  # raises NotFound, with a suggestion
    answers = client.map_brokers(names, lambda name: _settings_of_name(client, name))
    groups: dict[tuple[str, ...], list[str]] = {}
    problems = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, AdminError):
            problems.append(answer)
        elif answer.controllers:
            groups.setdefault(answer.controllers, []).append(name)
    if problems and not groups:
        raise problems[0]
    return [ControlledNames(key, tuple(members)) for key, members in groups.items()]


def _settings_of_name(client: "AdminClient", name: str) -> ElectionSettings | AdminError:
    """Ask the brokers of a name in turn; return the error of the last one if none answers."""
    problem: AdminError = NotFound(f'broker "{name}" is not registered')
    for _, address in sorted(client.cluster.broker_addr_table[name].broker_addrs.items()):
        try:
            return read_election_settings(client, address)
        except AdminError as error:
            problem = error
    return problem


class ControllerGroup:
    """A group of controllers, which is asked at the one that leads."""

    def __init__(self, client: "AdminClient", addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._client = client
        self._leader: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.addresses)

    def ask(self, request: Request[Reply]) -> Reply:
        """Send a request to the controller that leads. Raises NotReached, Refused."""
        leader = self._leader or self.find_leader()
        try:
            return self._client.ask(leader, request)
        except Refused as refused:
            if refused.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise
        except NotReached as error:
            # Its successor leads after some seconds; the others still name the one that does not answer.
            self._leader = None
            raise NotReached(
                f"the controller {leader} leads, but does not answer: {error.reason or error}. Another one takes its "
                "place within seconds: try again",
                error.reason,
            ) from error
        return self._client.ask(self.find_leader(), request)

    def find_leader(self) -> str:
        """Return the address of the controller that leads. Raises NotReached if none is known to lead."""
        answers = self._describe_all()
        self._leader = _leader_in(answers)
        if self._leader is not None:
            return self._leader
        problems = [
            f"{address}: {_problem_text(answer)}"
            for address, answer in answers.items()
            if isinstance(answer, AdminError)
        ]
        if len(problems) == len(answers):
            raise NotReached(
                f"no controller answers ({'; '.join(problems)}). Are they running? Their addresses are those in "
                "controllerAddr of the brokers, or those of --controller."
            )
        raise NotReached(
            f"no controller leads at present ({self}). Can they reach their store (controllerEtcd), and do most of "
            "them run? Try again after some seconds."
        )

    def _describe_all(self) -> dict[str, Description]:
        def describe(address: str) -> Description:
            try:
                return self._client.ask(address, ControllerGetMetadataInfo())
            except AdminError as error:
                return error

        return dict(zip(self.addresses, map_in_threads(self.addresses, describe), strict=True))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each controller, those included that only the others know.

        The next request goes to the one that leads, without another search for it.
        """
        answers = self._describe_all()
        member_ids: dict[str, str] = {}
        for answer in answers.values():
            if not isinstance(answer, AdminError):
                member_ids |= parse_peers(answer.peers or "")
        unasked = [address for address in member_ids if address not in answers]
        answers |= ControllerGroup(self._client, unasked)._describe_all()
        self._leader = _leader_in(answers)
        return [self._row(address, answers[address], member_ids.get(address, "")) for address in answers]

    def _row(self, address: str, answer: Description, member_id: str) -> dict[str, Any]:
        row: dict[str, Any] = {"controller": member_id or None, "address": address, "leads": _leads(answer)}
        if isinstance(answer, AdminError):
            return row | {"group": None, "leader": None, "problem": _problem_text(answer)}
        leader = answer.controller_leader_address or None
        return row | {"group": answer.group, "leader": leader, "problem": None}

    def may_be_unclean(self) -> bool:
        """Tell whether a replica that is not in sync may be elected; False if the controller does not say."""
        try:
            values = parse_config(self.ask(GetControllerConfig()).body, str(self))
        except Refused:
            return False
        return values.get("enableElectUncleanMaster") == _TRUE


def _leads(answer: Description) -> bool:
    return not isinstance(answer, AdminError) and answer.is_leader


def _leader_in(answers: Mapping[str, Description]) -> str | None:
    """Return the address of the controller that says it leads, or else of one that another names; None without."""
    for address, answer in answers.items():
        if _leads(answer):
            return address
    for answer in answers.values():
        if not isinstance(answer, AdminError) and answer.controller_leader_address:
            return answer.controller_leader_address
    return None


def _problem_text(error: AdminError) -> str:
    """Return the text of an error, without advice about brokers."""
    return (error.reason if isinstance(error, NotReached) else "") or str(error)


def parse_peers(text: str) -> dict[str, str]:
    """Return the ids of controllers by address, from the field of an answer: "n0:10.0.0.1:9878;n1:10.0.0.2:9878;"."""
    member_ids = {}
    for part in split_addresses(text):
        member_id, separator, address = part.partition(":")
        # Without an id it is the port that follows.
        if separator and ":" in address and not part.startswith("["):
            member_ids[address] = member_id
        else:
            member_ids[part] = ""
    return member_ids
