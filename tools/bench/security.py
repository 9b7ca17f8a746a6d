"""Measures the cost of access control and of TLS: our server and the official one, each against itself without them.

Run it with `python -m tools.bench.security`.

One client sends to a plain server, to one with access control as a user without special rights, and to one over TLS: a
block of messages to each in turn, so that other load on the machine affects all alike. Compare the ratios.
"""

import json
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import click

from compat_tests.endpoints import Endpoint, Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import access_control_settings
from compat_tests.server import split_address
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.requests.auth import AuthCreateAcl, AuthCreateUser
from tools.bench.cli import endpoint_factory
from tools.bench.loads import Figures, LoadFailed, run_bench_client
from tools.bench.usage import cpu_s

PLAIN, SIGNED, TLS = "plain", "access control", "TLS"
WAYS: Final = (PLAIN, SIGNED, TLS)
ROOT: Final = Credentials("bench-root", "secret of the benchmark's root")
SENDER: Final = Credentials("bench-sender", "secret-of-the-sender")
PROBED_CODES: Final = "10,30,105"
"""SEND_MESSAGE, GET_MAX_OFFSET and GET_ROUTEINFO_BY_TOPIC, which probes send without a signature; clients use 310."""
BLOCK_SENDS: Final = 500
"""Sends in one way before the next one's turn."""
WARM_UP_SENDS: Final = 10_000
IDLE_S: Final = 3.0
MAX_RATE_LOSS: Final = 0.15
"""Largest acceptable loss of our rate by access control, as a fraction."""


@dataclass
class MeasuredWay:
    """A way to send to one server, with a sample for each round."""

    side: str
    way: str
    endpoint: Endpoint
    samples: list[Figures] = field(default_factory=list)


def start_ways(side: str, stack: ExitStack) -> list[MeasuredWay]:
    """Start a server for each way. One without access control takes plain and TLS connections."""
    settings = access_control_settings(ROOT.access_key, ROOT.secret_key)
    settings |= {"authenticationWhitelist": PROBED_CODES, "authorizationWhitelist": PROBED_CODES}
    measured = []
    for way in WAYS:
        endpoint = stack.enter_context(endpoint_factory(side, settings if way == SIGNED else {})())
        if way == SIGNED:
            create_sender(endpoint.broker)
        measured.append(MeasuredWay(side, way, endpoint))
    return measured


def create_sender(broker: str) -> None:
    """Create the user that signs the sends: not a super user, whose requests need no policy."""
    sign = make_signer(ROOT)
    with BlockingClient(*split_address(broker), timeout_s=15, sign=sign) as root:
        name = SENDER.access_key
        root.ask(AuthCreateUser(username=name, data=UserInfo(password=SENDER.secret_key)))
        # The topic is created by its first send, with the queues of TBW102.
        entries = [
            PolicyEntryInfo(resource=resource, actions=["Pub", "Create"], decision="Allow")
            for resource in ("Topic:Bench*", "Topic:TBW102")
        ]
        acl = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
        root.ask(AuthCreateAcl(subject=f"User:{name}", data=acl))


def measure_round(measured: list[MeasuredWay], threads: int, size_bytes: int, count: int) -> None:
    """Send in turns in all ways, and add a sample to each.

    The processor time of a server is that of the round less what it uses when idle for as long.
    """
    idle_cores = measure_idle_cores(measured)
    options: dict[str, object] = {
        "topic": "BenchSecurity",
        "size": size_bytes,
        "count": count,
        "block": BLOCK_SENDS,
        "warm_up": WARM_UP_SENDS,
        "threads": threads,
        "namesrvs": ",".join(way.endpoint.namesrv for way in measured),
        "signed": ",".join(str(int(way.way == SIGNED)) for way in measured),
        "tls": ",".join(str(int(way.way == TLS)) for way in measured),
        "access_key": SENDER.access_key,
        "secret_key": SENDER.secret_key,
    }
    before_s, begin_s = [cpu_s(way.endpoint.pids()) for way in measured], time.monotonic()
    pairs = (f"{key}={value}" for key, value in options.items())
    figures = run_bench_client(measured[0].endpoint, "senders", *pairs)
    took_s = time.monotonic() - begin_s
    for index, way in enumerate(measured):
        used_s = cpu_s(way.endpoint.pids()) - before_s[index] - idle_cores[index] * took_s
        sample = {name: figures[f"{name}_{index}"] for name in ("rate", "p50_ms", "p99_ms")}
        way.samples.append({**sample, "cpu_us": used_s / (count + WARM_UP_SENDS) * 1e6})
        click.echo(json.dumps({f"{way.side}, {way.way}": way.samples[-1]}), err=True)


def measure_idle_cores(measured: list[MeasuredWay]) -> list[float]:
    """Return the cores that each server uses when nobody sends."""
    before_s = [cpu_s(way.endpoint.pids()) for way in measured]
    time.sleep(IDLE_S)
    return [
        (cpu_s(way.endpoint.pids()) - before) / IDLE_S for way, before in zip(measured, before_s, strict=True)
    ]


def median_of_ratios(measured: MeasuredWay, plain: MeasuredWay, figure: str) -> float:
    """Return the median, over the rounds, of a figure relative to the plain way of the same round."""
    return statistics.median(
        own[figure] / base[figure] for own, base in zip(measured.samples, plain.samples, strict=True)
    )


def ratio_table(measured: list[MeasuredWay]) -> str:
    """Return the figures as a Markdown table."""
    rows = [["server", "way", "messages/s", "CPU µs/message", "rate", "CPU"], ["---", "---", *["---:"] * 4]]
    for way in measured:
        plain = next(other for other in measured if other.side == way.side and other.way == PLAIN)
        rate, cpu_us = (
            statistics.median(sample[figure] for sample in way.samples) for figure in ("rate", "cpu_us")
        )
        ratios = [f"{median_of_ratios(way, plain, figure):.2f}" for figure in ("rate", "cpu_us")]
        rows.append([way.side, way.way, f"{rate:,.0f}", f"{cpu_us:.1f}", *ratios])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of rounds.")
@click.option(
    "--threads", type=click.IntRange(1), default=16, show_default=True, help="Threads of the client."
)
@click.option(
    "--size", type=click.IntRange(1), default=128, show_default=True, help="Size of a body in bytes."
)
@click.option(
    "--count",
    type=click.IntRange(BLOCK_SENDS),
    default=30_000,
    show_default=True,
    help="Messages of each way in each round.",
)
@click.option("--only-ours", is_flag=True, help="Leave out the official server.")
def main(rounds: int, threads: int, size: int, count: int, only_ours: bool) -> None:
    """Compare sends with access control and with TLS to plain ones, on our server and on the official one."""
    exit_on_sigterm()
    finished: list[MeasuredWay] = []
    try:
        for side in ("ours",) if only_ours else ("ours", "official"):
            with ExitStack() as stack:
                measured = start_ways(side, stack)
                for _ in range(rounds):
                    measure_round(measured, threads, size, count)
            finished += measured
    except (Unavailable, LoadFailed) as error:
        raise click.ClickException(f"cannot compare on this machine: {error}") from error
    click.echo(ratio_table(finished))
    sys.exit(1 if median_of_ratios(finished[1], finished[0], "rate") < 1 - MAX_RATE_LOSS else 0)


if __name__ == "__main__":
    main()
