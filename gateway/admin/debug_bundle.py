"""Collects information for the diagnosis of a misbehaving cluster in a tar file, without secrets and messages."""

import io
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.admin.cluster_health import check_cluster, describe_brokers
from gateway.admin.errors import AdminError
from gateway.admin.groups import list_groups
from gateway.admin.replica_sets import check_controllers
from gateway.admin.server_config import mask_secrets, read_broker_config, read_namesrv_config
from gateway.admin.topics import list_topics
from remoting.requests.admin import GetBrokerRuntimeInfo
from toolkit.private_files import PRIVATE_FILE, open_private
from toolkit.times import format_time

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

MAX_METRICS_BYTES: Final = 64 * 1024 * 1024
CONTENTS: Final = {
    "versions.json": "versions of this program, Python and the operating system it ran on",
    "cluster.json": "brokers with addresses, versions, rates and disks, from the namesrv and from the brokers",
    "health.json": "the checks of `cluster health`",
    "topics.json": "names and settings of all topics",
    "groups.json": "consumer groups with members and lag",
    "config/": "settings of each namesrv and broker; values of secrets are masked by the names of their keys",
    "runtime/": "statistics of each broker",
    "metrics/": "answers of the URLs that were given with --metrics",
    "errors.json": "parts that could not be read, and why",
}
"""The files of a bundle; README.txt lists them."""
NOTICE: Final = (
    "It holds names of topics and groups, addresses of servers and settings. It holds no message, no key of a message "
    "and no secret. Look through it before you pass it on."
)


class Bundle:
    """Collects files in memory. A part that cannot be read becomes an entry among the errors."""

    def __init__(self, now_ms: int) -> None:
        self.files: dict[str, bytes] = {}
        self.errors: dict[str, str] = {}
        self._now_ms = now_ms

    def add(self, name: str, read: Callable[[], Any]) -> None:
        """Add what a function returns: bytes as they are, anything else as JSON."""
        try:
            value = read()
        except (AdminError, OSError, ValueError) as error:
            self.errors[name] = str(error)
            return
        is_text = isinstance(value, bytes)
        self.files[name] = value if is_text else orjson.dumps(value, option=orjson.OPT_INDENT_2)

    def readme(self) -> bytes:
        """Return the text that explains the files of the bundle."""
        lines = [
            f"Debug bundle of a RocketMQ cluster, made by rmq-gateway at {format_time(self._now_ms)}.",
            "",
        ]
        lines += [f"{name:<15}{meaning}" for name, meaning in CONTENTS.items()]
        return "\n".join([*lines, "", NOTICE, ""]).encode()

    def write(self, path: Path) -> int:
        """Write the tar file, readable by its owner only, and return its size. Raises OSError; overwrites nothing."""
        everything = {"README.txt": self.readme(), **self.files}
        everything["errors.json"] = orjson.dumps(self.errors, option=orjson.OPT_INDENT_2)
        with open(path, "xb", opener=open_private) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, content in sorted(everything.items()):
                entry = tarfile.TarInfo(f"{path.name.split('.')[0]}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), self._now_ms // 1000, PRIVATE_FILE
                tar.addfile(entry, io.BytesIO(content))
        return path.stat().st_size


def collect_bundle(
    client: "AdminClient", metrics_urls: Iterable[str] = (), now_ms: int | None = None
) -> Bundle:
    """Read everything from a cluster. Raises NotReached if no namesrv answers."""
    brokers = list(client.masters)
    bundle = Bundle(round(time.time() * 1000) if now_ms is None else now_ms)
    bundle.add("versions.json", describe_versions)
    bundle.add("cluster.json", lambda: describe_brokers(client))
    bundle.add(
        "health.json",
        lambda: [check.to_dict() for check in (*check_cluster(client), *check_controllers(client))],
    )
    bundle.add("topics.json", lambda: list_topics(client, all_kinds=True))
    bundle.add("groups.json", lambda: list_groups(client, all_kinds=True))
    for address in client.namesrvs:
        bundle.add(
            f"config/namesrv-{file_name(address)}.json",
            lambda address=address: mask_secrets(read_namesrv_config(client, address)),  # type: ignore[misc]
        )
    for name in brokers:
        bundle.add(
            f"config/broker-{file_name(name)}.json",
            lambda name=name: mask_secrets(read_broker_config(client, name)),  # type: ignore[misc]
        )
        bundle.add(
            f"runtime/broker-{file_name(name)}.json",
            lambda name=name: client.ask_broker(name, GetBrokerRuntimeInfo()).data.table,  # type: ignore[misc]
        )
    for url in metrics_urls:
        bundle.add(f"metrics/{file_name(url)}.txt", lambda url=url: read_url(url, client.timeout_s))  # type: ignore[misc]
    return bundle


def file_name(text: str) -> str:
    """Return a text as part of a file name."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)


def describe_versions() -> dict[str, str]:
    """Return the versions of this program and of the machine it runs on."""
    from importlib.metadata import PackageNotFoundError, version

    from toolkit.install_command import DISTRIBUTION

    try:
        own = version(DISTRIBUTION)
    except PackageNotFoundError:
        own = "not installed"
    return {"rmq-gateway": own, "python": sys.version, "platform": platform.platform()}


def read_url(url: str, timeout_s: float) -> bytes:
    """Return the answer of an HTTP address. Raises OSError, and ValueError for another kind of address."""
    from http.client import HTTPException
    from urllib.request import urlopen

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is not an http address")
    try:
        with urlopen(url, timeout=timeout_s) as answer:
            body: bytes = answer.read(MAX_METRICS_BYTES)
    except HTTPException as error:
        raise ValueError(f"{url} did not answer with HTTP: {type(error).__name__}") from error
    return body
