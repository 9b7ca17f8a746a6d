"""Measures the cost of access control and of TLS: our server and the official one, each against itself without them.

Run it with `python -m compat_tests.bench.security`.

The official benchmark producer sends to a server without access control, over plain connections and over TLS, and to
one with it, where a user without special rights signs each request. The ways take turns in each round, and the figures
are medians of each round's ratios to the plain way: so other load on the machine, which changes slowly, affects all
alike.
"""

import json
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import click

from compat_tests.bench.cli import endpoint_factory, paused
from compat_tests.bench.loads import WARM_UP, Figures, LoadDurations, LoadFailed, secured_send_load
from compat_tests.endpoints import Endpoint, Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import access_control_settings
from compat_tests.server import split_address
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.requests.auth import AuthCreateAcl, AuthCreateUser

PLAIN, SIGNED, TLS = "plain", "access control", "TLS"
ROOT: Final = Credentials("bench-root", "secret of the benchmark's root")
SENDER: Final = Credentials("bench-sender", "secret-of-the-sender")
COUNTED_CODES: Final = "30,105"
"""GET_MAX_OFFSET and GET_ROUTEINFO_BY_TOPIC, which the benchmark itself asks without a signature."""
MAX_RATE_LOSS: Final = 0.15
"""Largest acceptable loss of our rate by access control, as a fraction."""


@dataclass(frozen=True)
class Way:
    """One way to send: the server with which settings, the producer's options, and its system properties."""

    name: str
    options: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


WAYS = (
    Way(PLAIN),
    Way(SIGNED, ("-a", "true", "-ak", SENDER.access_key, "-sk", SENDER.secret_key)),
    Way(TLS, (), {"tls.enable": "true"}),
)


@dataclass
class MeasuredWay:
    """A way on one server, with a sample for each round."""

    side: str
    way: Way
    endpoint: Endpoint
    samples: list[Figures] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.side}, {self.way.name}"


def start_ways(sides: tuple[str, ...], stack: ExitStack) -> list[MeasuredWay]:
    """Start two servers of each kind, with and without access control; the latter takes plain and TLS connections."""
    measured = []
    for side in sides:
        settings = access_control_settings(ROOT.access_key, ROOT.secret_key)
        settings |= {"authenticationWhitelist": COUNTED_CODES, "authorizationWhitelist": COUNTED_CODES}
        open_server = stack.enter_context(endpoint_factory(side, {})())
        guarded = stack.enter_context(endpoint_factory(side, settings)())
        create_sender(guarded.broker)
        measured += [MeasuredWay(side, way, guarded if way.name == SIGNED else open_server) for way in WAYS]
    return measured


def create_sender(broker: str) -> None:
    """Create the user that signs the sends: not a super user, whose requests need no policy."""
    sign = make_signer(ROOT)
    with BlockingClient(*split_address(broker), timeout_s=15, sign=sign) as root:
        name = SENDER.access_key
        root.ask(AuthCreateUser(username=name, data=UserInfo(password=SENDER.secret_key)))
        # The official producer's topics are created by its first send.
        entries = [
            PolicyEntryInfo(resource=resource, actions=["Pub", "Create"], decision="Allow")
            for resource in ("Topic:Bench*", "Topic:TBW102")
        ]
        acl = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
        root.ask(AuthCreateAcl(subject=f"User:{name}", data=acl))


def measure_round(
    measured: list[MeasuredWay], threads: int, size_bytes: int, durations: LoadDurations
) -> None:
    """Run each way once, while all other servers are suspended, and add a sample to each."""
    for each in measured:
        others = {
            id(other.endpoint): other.endpoint for other in measured if other.endpoint is not each.endpoint
        }
        load = secured_send_load(f"{threads}t", threads, size_bytes, each.way.options, each.way.properties)
        with ExitStack() as stack:
            for other in others.values():
                stack.enter_context(paused(other))
            figures = load.run(each.endpoint, durations)
        each.samples.append(figures)
        click.echo(json.dumps({each.title: figures}), err=True)


def median_of_ratios(each: MeasuredWay, plain: MeasuredWay, figure: str) -> float:
    """Return the median, over the rounds, of a figure relative to the plain way of the same round."""
    return statistics.median(
        own[figure] / base[figure] for own, base in zip(each.samples, plain.samples, strict=True)
    )


def ratio_table(measured: list[MeasuredWay]) -> str:
    """Return the figures as a Markdown table."""
    rows = [["server", "way", "messages/s", "CPU µs/message", "rate", "CPU"], ["---", "---", *["---:"] * 4]]
    for each in measured:
        plain = next(one for one in measured if one.side == each.side and one.way.name == PLAIN)
        rate, cpu_us = (
            statistics.median(sample[figure] for sample in each.samples) for figure in ("rate", "cpu_us")
        )
        ratios = [f"{median_of_ratios(each, plain, figure):.2f}" for figure in ("rate", "cpu_us")]
        rows.append([each.side, each.way.name, f"{rate:,.0f}", f"{cpu_us:.1f}", *ratios])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of runs of each way."
)
@click.option(
    "--threads", type=click.IntRange(1), default=64, show_default=True, help="Threads of the producer."
)
@click.option(
    "--size", type=click.IntRange(1), default=128, show_default=True, help="Size of a body in bytes."
)
@click.option("--only-ours", is_flag=True, help="Leave out the official server.")
def main(rounds: int, threads: int, size: int, only_ours: bool) -> None:
    """Compare sends with access control and with TLS to plain ones, on our server and on the official one."""
    exit_on_sigterm()
    durations = LoadDurations(warm_up_s=4.0, window_s=3.0, settle_limit_s=3.0)
    try:
        with ExitStack() as stack:
            measured = start_ways(("ours",) if only_ours else ("ours", "official"), stack)
            for endpoint in {
                id(each.endpoint): each.endpoint for each in measured if each.way.name == PLAIN
            }.values():
                WARM_UP.run(endpoint, durations)
            for _ in range(rounds):
                measure_round(measured, threads, size, durations)
    except (Unavailable, LoadFailed) as error:
        raise click.ClickException(f"cannot compare on this machine: {error}") from error
    click.echo(ratio_table(measured))
    plain, signed = measured[0], measured[1]
    sys.exit(1 if median_of_ratios(signed, plain, "rate") < 1 - MAX_RATE_LOSS else 0)


if __name__ == "__main__":
    main()
