"""The official server as plain processes from the Maven Central jars: one namesrv, one broker, and replicas of it.

A freshly started broker takes half the processor time with a few JVM options, and registers 10 s sooner if it is
reminded to (`REMINDER_INTERVAL_S`). Tests use both; benchmarks pass `FULL_SPEED` and get neither.
"""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.probe import Probe, ProbeRefused
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import fetch_jars, java_command

# Sized for a laptop; the published scripts ask for 4 and 8 GiB.
NAMESRV_HEAP = "-Xms64m -Xmx256m"
BROKER_HEAP = "-Xms512m -Xmx1g -XX:MaxDirectMemorySize=1g"
QUICK_START_WITH_TLS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For tests: halves the processor time of a start, but is slow under load."""
QUICK_START = f"{QUICK_START_WITH_TLS} -Dtls.server.mode=disabled"
"""For tests without TLS: halves it again, because no start generates a key and a certificate."""
FULL_SPEED = "-XX:+UseG1GC"
"""For benchmarks, which measure an untuned broker."""
# Settings the suite needs on any server; `settings` override every key.
BROKER_SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "diskMaxUsedSpaceRatio": "95",
    # By default a disk that is 85 percent full costs a store its oldest files; above 90 percent messages are refused.
    "cleanFileForciblyEnable": "false",
    # By default requests that wait for 200 ms and appends that take 1 s are refused, which happens on a busy machine.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "10000",
}
# An idle broker uses a quarter of a core to write its whole timer wheel every second, and a whole core to busy-wait for
# the end of the first interval of its transaction metrics.
IDLE_SETTINGS = {"timerFlushIntervalMs": "60000", "transactionMetricFlushInterval": "200"}

REMINDER_INTERVAL_S = 0.25
"""A 5.x broker begins to connect to its namesrv only when it should register, mostly fails, and tries again 10 s later.
Setting its permission makes it register at once."""

EXIT_TIMEOUT_S = 1.0
"""Time a broker gets to exit after it has deleted the file that marks its store as open."""


def access_control_settings(user: str, secret: str) -> dict[str, str]:
    """Return settings of ACL 2.0 with one super user, who also signs the broker's own requests; ours takes them too."""
    auth = "org.apache.rocketmq.auth"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": user, "password": secret}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": user, "secretKey": secret}),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider",
    }


class OfficialEndpoint(LocalEndpoint):
    """An official namesrv and broker.

    `namesrv`: address ("host:port") of a running namesrv to register with; without it, one is started. `jvm`: further
    JVM options, which may be changed while the endpoint is stopped. `namesrv_settings`: keys of namesrv.conf.
    `prefix`: words before the command, for example of a network namespace.
    """

    kind = "official"
    start_timeout_s = 90.0

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
        *,
        profile: str = "server-5.4",
        namesrv: str | None = None,
        jvm: str = QUICK_START,
        namesrv_settings: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        fetch_jars(profile)
        super().__init__(find_server_ports(), settings, directory, tls)
        self.profile = profile
        self.jvm = jvm
        self._prefix = prefix
        self._external_namesrv = namesrv
        self._namesrv_settings = dict(namesrv_settings or {})
        self._last_reminder_s = 0.0

    @property
    def namesrv(self) -> str:
        return self._external_namesrv or super().namesrv

    @property
    def _is_untuned(self) -> bool:
        """True if nothing is done to make the server start sooner or run cheaper."""
        return self.jvm == FULL_SPEED

    def start_children(self) -> None:
        if self._external_namesrv is None:
            lines = {"listenPort": str(self.namesrv_port), "bindAddress": "127.0.0.1"}
            lines["kvConfigPath"] = str(self.directory / "kvConfig.json")
            lines |= self._namesrv_settings
            self._start_java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", NAMESRV_HEAP, lines)
            self._wait_for_namesrv()
        self._start_java(
            "broker", "org.apache.rocketmq.broker.BrokerStartup", BROKER_HEAP, self.broker_lines()
        )

    def stop(self) -> None:
        """Stop the broker as soon as its store is closed; it would spend another 13 s ending its threads."""
        if self.children and self.children[-1].exit_code() is None:
            broker = self.children.pop()
            broker.send_sigterm()
            end = time.monotonic() + self.stop_timeout_s
            abort = self.store / "abort"
            while broker.exit_code() is None and abort.exists() and time.monotonic() < end:
                time.sleep(0.02)
            broker.terminate(EXIT_TIMEOUT_S)
        super().stop()

    def broker_lines(self) -> dict[str, str]:
        """Return the content of broker.conf."""
        places = {
            "listenPort": str(self.broker_port),
            "namesrvAddr": self.namesrv,
            "bindAddress": "127.0.0.1",
        }
        places |= {"brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1"}
        places |= {"storePathRootDir": str(self.store), "storePathCommitLog": str(self.store / "commitlog")}
        idle = {} if self._is_untuned else IDLE_SETTINGS
        return {**BROKER_SETTINGS, **idle, **places, **self.settings}

    def _start_java(self, name: str, main_class: str, heap: str, lines: Mapping[str, str]) -> None:
        home = self.directory / "home"
        # The server looks for tool files below its home; an empty conf folder is enough.
        (home / "conf").mkdir(parents=True, exist_ok=True)
        # 4.x insists on a logback file of its own.
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")
        self.store.mkdir(exist_ok=True)
        conf = self.directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        log = self.directory / f"{name}.log"
        command = java_command(
            self.profile,
            main_class,
            home,
            heap=f"{heap} {self.jvm}",
            log=log,
            log_level="INFO",
            mapped=not self._is_untuned,
        )
        output = self.directory / f"{name}-output.log"
        self.children.append(
            ChildProcess(
                name,
                [*self._prefix, *command, "-c", str(conf)],
                output,
                {"ROCKETMQ_HOME": str(home)},
            )
        )

    def _while_starting(self) -> None:
        super()._while_starting()
        if not self._is_untuned and time.monotonic() - self._last_reminder_s > REMINDER_INTERVAL_S:
            self._last_reminder_s = time.monotonic()
            with suppress(OSError, ProbeRefused), Probe(self.broker, tls=self._probe_tls) as probe:
                probe.update_broker_config(brokerPermission=self.settings.get("brokerPermission", "6"))

    def _wait_for_namesrv(self) -> None:
        # A broker that finds no namesrv skips its first registration.
        end = time.monotonic() + self.start_timeout_s
        while time.monotonic() < end:
            self._check_alive()
            try:
                Probe(self.namesrv, tls=self._probe_tls).__exit__()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"the official namesrv did not listen in {self.start_timeout_s} s\n{self.logs()}")


class ReplicaEndpoint(OfficialEndpoint):
    """A further broker of the same name for a running cluster; `registered(address)` says if the cluster knows it."""

    def __init__(
        self,
        settings: Mapping[str, str],
        directory: Path,
        namesrv: str,
        registered: Callable[[str], bool],
        profile: str = "server-5.4",
        prefix: tuple[str, ...] = (),
    ) -> None:
        super().__init__(settings, directory, namesrv=namesrv, profile=profile, prefix=prefix)
        self._registered = registered

    def start(self) -> None:
        """Start the replica and wait until it is registered; it takes no sends, so there is no route to wait for."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.start_children()
        end = time.monotonic() + self.start_timeout_s
        while not self._registered(self.broker):
            self._while_starting()
            if time.monotonic() > end:
                self.crash()
                raise RuntimeError(f"no replica in {self.start_timeout_s} s\n{self.logs()}")
            time.sleep(0.1)
