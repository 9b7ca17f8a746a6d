"""A shadow gateway between two clusters of ours that both have access control, each with users of its own.

Clients' requests reach the primary with the clients' signatures, so its users and rules decide about them, and its
refusals come back word for word. What the gateway itself asks and mirrors is signed by its own user at either cluster.
Official clusters with access control are in `test_shadow_secure.py`.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

from acceptance.moving import STEP_TIMEOUT_S
from acceptance.secured import (
    add_user,
    create_topics,
    denial,
    dial,
    run_ours,
    secret_of,
    write_private,
)
from compat_tests.cases.conftest import has_queues, stock_client
from compat_tests.clients.popping import ack, pop_until
from compat_tests.clients.typed import (
    messages,
    pull,
    pull_request,
    send,
    send_heartbeat,
    send_request,
    topic_request,
)
from compat_tests.server import eventually
from remoting.acl import Credentials
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.topics import DeleteTopicInBroker
from tools.processes import Gateway

ORDERS, BILLS = "accounts-orders", "accounts-bills"
GROUP, POP_GROUP = "accounts-group", "accounts-pop-group"
EVERYTHING = tuple((f"{kind}:*", "All", "Allow") for kind in ("Topic", "Group", "Cluster"))
CLERK_RULES = ((f"Topic:{ORDERS}", "Pub,Sub", "Allow"), ("Group:accounts-*", "Sub", "Allow"))
AT_PRIMARY, AT_TARGET = "gateway-at-primary", "gateway-at-target"


class Site:
    """Both clusters, and the gateway between them."""

    def __init__(self, primary: Gateway, target: Gateway, gateway: Gateway) -> None:
        self.primary, self.target, self.gateway = primary, target, gateway

    @contextmanager
    def both_ways(self, user: str | None, secret: str) -> Iterator[tuple[BlockingClient, BlockingClient]]:
        """Yield a client of the gateway and one of the primary."""
        with (
            dial(self.gateway.broker, user, secret) as through,
            dial(self.primary.broker, user, secret) as direct,
        ):
            yield through, direct


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("accounts")
    with ExitStack() as stack:
        for name in ("primary", "target"):
            (directory / name).mkdir()
        primary = stack.enter_context(run_ours(directory / "primary"))
        target = stack.enter_context(run_ours(directory / "target"))
        with dial(primary.broker) as root:
            add_user(root, AT_PRIMARY, *EVERYTHING)
            add_user(root, "clerk", *CLERK_RULES)
        with dial(target.broker) as root:
            add_user(root, AT_TARGET, *EVERYTHING)
        create_topics(primary, ORDERS, BILLS)
        tables = table(primary, "primary", AT_PRIMARY), table(target, "target", AT_TARGET)
        config = write_private(directory / "shadow.toml", "\n".join(tables))
        flags = ("-c", str(config), "--log-level", "debug")
        gateway = stack.enter_context(Gateway(directory / "gateway", *flags, command="shadow"))
        yield Site(primary, target, gateway)
        for name in (AT_PRIMARY, AT_TARGET, "clerk"):
            assert secret_of(name) not in gateway.output()
        assert "Traceback" not in gateway.output()


def table(cluster: Gateway, name: str, user: str) -> str:
    """Return a table of shadow.toml with the gateway's user at a cluster."""
    return (
        f'[{name}]\nnamesrv = ["{cluster.namesrv}"]\n'
        f'credentials = {{ access_key = "{user}", secret_key = "{secret_of(user)}" }}'
    )


def mirror_status(site: Site) -> dict[str, Any]:
    with urlopen(f"http://{site.gateway.ready['console']}/mirror", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def bodies_at_target(site: Site, topic: str) -> list[bytes]:
    """Return the bodies that the target's super user reads; none before the topic is there."""
    with dial(site.target.broker) as root:
        try:
            return [each.body for each in messages(pull(root, topic))]
        except RequestError:
            return []


def test_a_users_requests_pass_with_their_signatures(site: Site) -> None:
    """Every kind of request that a producer and a consumer send; a changed byte would make one fail."""
    with dial(site.gateway.broker, "clerk", secret_of("clerk")) as clerk:
        for binary in (False, True):
            clerk.binary = binary
            body = f"bödy {binary}".encode()
            offset = send(clerk, ORDERS, body, properties={"KEYS": "schlüssel"}).queue_offset
            assert [each.body for each in messages(pull(clerk, ORDERS, offset, consumer_group=GROUP))] == [
                body
            ]
            send_heartbeat(clerk, "clerk-client", GROUP, ORDERS)
            place = {"consumer_group": GROUP, "topic": ORDERS, "queue_id": 0}
            clerk.ask(UpdateConsumerOffset(**place, commit_offset=offset + 1))
            assert clerk.ask(QueryConsumerOffset(**place)).offset == offset + 1
        clerk.binary = False  # its codes are too large for binary headers
        for each in pop_until(clerk, ORDERS, POP_GROUP, 1):
            ack(clerk, POP_GROUP, each)
    with dial(site.gateway.namesrv, "clerk", secret_of("clerk")) as clerk:
        (found,) = clerk.ask(GetRouteInfoByTopic(topic=ORDERS)).data.broker_datas
        assert list(found.broker_addrs.values()) == [site.gateway.broker]


@pytest.mark.parametrize(
    ("user", "secret"),
    [("clerk", "wrong"), ("stranger", "any"), (AT_TARGET, secret_of(AT_TARGET)), (None, "")],
)
def test_others_get_the_primarys_refusal(site: Site, user: str | None, secret: str) -> None:
    """The gateway lends nobody its own accounts, and its user at the target is nobody at the primary."""
    with site.both_ways(user, secret) as (through, direct):
        for request in (send_request(ORDERS), topic_request("accounts-new", 1), pull_request(ORDERS, 0)):
            assert denial(through, request) == denial(direct, request)


def test_the_primarys_rules_decide(site: Site) -> None:
    with site.both_ways("clerk", secret_of("clerk")) as (through, direct):
        for request, resource in (
            (send_request(BILLS), f"Topic:{BILLS}"),
            (pull_request(ORDERS, 0, consumer_group="other"), "Group:other"),
            (DeleteTopicInBroker(topic=ORDERS), f"Topic:{ORDERS}"),
        ):
            remark = denial(through, request)
            assert resource in remark
            assert "clerk" in remark
            assert remark.split(" from ")[0] == denial(direct, request).split(" from ")[0]


def test_the_mirror_signs_with_its_account_at_the_target(site: Site) -> None:
    """The target does not know the user who sent the messages; refused ones never get there."""
    bodies = [b"mirrored %d" % number for number in range(10)]
    with dial(site.gateway.broker, "clerk", secret_of("clerk")) as clerk:
        for number, body in enumerate(bodies):
            send(clerk, ORDERS, body, properties={"UNIQ_KEY": f"ACCOUNTS-{number}"})
        denial(clerk, send_request(BILLS, b"refused"))
    eventually(lambda: bodies_at_target(site, ORDERS)[-len(bodies) :] == bodies, STEP_TIMEOUT_S)
    assert bodies_at_target(site, BILLS) == []
    with dial(site.target.broker, "clerk", secret_of("clerk")) as clerk:
        assert "clerk" in denial(clerk, send_request(ORDERS))
    found = mirror_status(site)
    assert not found["diverged"]
    assert sum(each["refused"] + each["dropped"] for each in found["streams"]) == 0


def test_a_stock_client_signs_through_the_gateway(site: Site) -> None:
    with stock_client(site.gateway.namesrv) as plain:
        java = plain.acting_as(site.gateway.namesrv, Credentials("clerk", secret_of("clerk")))
        with java.producer("accounts_producer") as producer:
            eventually(lambda: has_queues(producer, ORDERS), 60)
            assert [each["status"] for each in producer.send_numbered(ORDERS, 5)] == ["SEND_OK"] * 5
