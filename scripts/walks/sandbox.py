"""Makes the sandbox of a walk: a fresh home, an environment with the wheel, and a network of its own.

Guides use fixed ports, which other programs of the machine may occupy. On Linux a walk therefore runs in a network
namespace that has only the loopback interface: every port is free, and commands are typed exactly as they are written.
Without namespaces, the ports of the guide must be free on the machine.
"""

import fcntl
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LEFT_OUT: Final = ("PYTHON", "VIRTUAL_ENV", "RMQ_GATEWAY_", "PYSPARK_", "SPARK_", "NAMESRV_ADDR", "ROCKETMQ_")
SHORT_LIVED_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options that halve the processor time of a JVM that lives for seconds; a reader sees no difference."""
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
SEND: Final = '''\
#!{python}
"""walk-send NAMESRV TOPIC COUNT: a client that the text of a guide mentions."""
import sys
from uuid import uuid4
import trio
from remoting.client import open_client
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.send import SendMessageV2

async def main(namesrv, topic, count):
    host, _, port = namesrv.rpartition(":")
    async with open_client(host, int(port)) as client:
        try:
            route = (await client.ask(GetRouteInfoByTopic(topic=topic))).data
        except Exception:
            route = (await client.ask(GetRouteInfoByTopic(topic="TBW102"))).data
    host, _, port = route.broker_datas[0].broker_addrs[0].rpartition(":")
    async with open_client(host, int(port)) as client:
        for number in range(int(count)):
            request = SendMessageV2(producer_group="walkers", topic=topic, default_topic="TBW102",
                default_topic_queue_nums=4, queue_id=number % 4, sys_flag=0, born_timestamp=1, flag=0,
                properties="KEYS\\1order-%d\\2TAGS\\1TagA\\2UNIQ_KEY\\1%s" % (number, uuid4().hex.upper()))
            request.body = b"%d" % number
            await client.ask(request)
    print(f"sent {{count}} messages to {{topic}}")

try:
    trio.run(main, *sys.argv[1:4])
except Exception as problem:
    while isinstance(problem, ExceptionGroup):
        problem = problem.exceptions[0]
    sys.exit(f"not sent: {{type(problem).__name__}}: {{problem}}")
'''


def isolation() -> list[str]:
    """Return the words that start a command in a network namespace of its own; none if that is not possible."""
    if shutil.which("unshare") is None:
        return []
    words = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    works = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if works else []


def raise_loopback() -> None:
    """Switch the loopback interface of a new network namespace on."""
    name = b"lo".ljust(16, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        present = fcntl.ioctl(any_socket, SIOCGIFFLAGS, name + bytes(24))
        flags = struct.unpack_from("h", present, 16)[0]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, name + struct.pack("h", flags | IFF_UP) + bytes(22))


def make_environment(home: Path, programs: Path, bin_folder: Path | None) -> dict[str, str]:
    """Return the environment variables of a reader with a fresh home; ``bin_folder`` is that of the installed wheel."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    own_folder = Path(sys.executable).parent
    path = [folder for folder in inherited.get("PATH", "").split(os.pathsep) if Path(folder) != own_folder]
    first = [str(programs), *([str(bin_folder)] if bin_folder is not None else [])]
    return {
        **inherited,
        "HOME": str(home),
        "SHELL": "/bin/bash",
        "PATH": os.pathsep.join([*first, *path]),
        # Java takes the home folder from the system's table, not from HOME.
        "JAVA_TOOL_OPTIONS": " ".join([f"-Duser.home={home}", *SHORT_LIVED_JVM]),
        # The host's name may stand for an address that the walk's network does not have.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def write_programs(folder: Path, python: Path) -> None:
    """Write the programs that play the clients and servers mentioned in guides.

    ``python`` has the installed wheel; the programs with stock clients and official servers run in this environment.
    """
    folder.mkdir(parents=True)
    cache = os.environ.get("ROCKETMQ_COMPAT_CACHE")
    variables = "" if cache is None else f"export ROCKETMQ_COMPAT_CACHE={shlex.quote(cache)}\n"
    texts = {"walk-send": SEND.format(python=python)}
    for name, module in (("walk-official", "official_cluster"), ("walk-clients", "stock_clients")):
        command = shlex.join([sys.executable, str(Path(__file__).with_name(f"{module}.py"))])
        texts[name] = f'#!/bin/sh\n{variables}exec {command} "$@"\n'
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def find_missing_programs(names: Sequence[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in names if shutil.which(name) is None]
