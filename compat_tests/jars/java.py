"""Builds command lines for Java programs that use the official jars, and compiles our own small programs.

`archives.py` builds the class data archives that the command lines use.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from compat_tests.jars.class_data import class_data_options
from compat_tests.jars.maven import COMPLETE_MARKER, cache_dir, fetch_jars, find_program, lock_file

LOGBACK = Path(__file__).with_name("conf")
# JDK packages that RocketMQ's Netty, mapped files and fastjson access by reflection; closed by default since JDK 16.
_OPENED = ("java.lang", "java.nio", "java.util", "java.io", "sun.nio.ch", "jdk.internal.misc")
_EXPORTED = ("jdk.internal.ref", "sun.nio.ch")


def java_command(
    profile: str,
    main_class: str,
    home: Path,
    *,
    heap: str = "-Xms128m -Xmx512m -XX:+UseSerialGC",
    classes: Sequence[Path] = (),
    properties: Mapping[str, str] | None = None,
    log: Path | None = None,
    log_level: str = "WARN",
    mapped: bool = True,
) -> list[str]:
    """Return the command line for `main_class` with the jars of `profile`; append the program's arguments to it.

    Whatever else the program writes (offsets, logs, temporary files) goes below `home`, its log to `log` (default
    `home`/java.log). `heap`: any JVM options. `classes`: jars that follow those of the profile. `mapped`: use the
    archive of the profile's classes if there is one.
    """
    jars = fetch_jars(profile)
    path = os.pathsep.join([f"{jars}/*", *map(str, classes)])
    settings = {
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        "rocketmq.home.dir": str(home),
        "rmq.logback.configurationFile": str(LOGBACK / "rmq.logback.xml"),
        "rocketmq.client.logRoot": str(home),
        "rocketmq.client.logLevel": log_level,
        "compat.log": str(log or home / "java.log"),
        "compat.level": log_level,
        **(properties or {}),
    }
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    opened += [f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in _EXPORTED]
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    archive = archive_path(jars)
    classes_from = class_data_options(archive) if mapped and archive.exists() else []
    return [
        find_program("java", "run it"),
        *heap.split(),
        *classes_from,
        *opened,
        *defined,
        "-cp",
        path,
        main_class,
    ]


def archive_path(jars: Path) -> Path:
    """Return the path of this JDK's archive for class paths that begin with these jars.

    `compat_tests.archives` builds it.
    """
    jdk = Path(find_program("java", "run it")).resolve()
    name = hashlib.sha256(f"{jdk} {jars}".encode()).hexdigest()[:8]
    return cache_dir() / "archives" / f"{jars.name}-{name}.jsa"


def compile_jar(sources: Sequence[Path], profile: str) -> Path:
    """Return a cached jar with the classes of `sources`, compiled for Java 8 against the jars of `profile`.

    Raises Unavailable without a JDK, and RuntimeError with the compiler's message if a source does not compile.
    """
    jars = fetch_jars(profile)
    digest = hashlib.sha256(f"jar {jars.name}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = cache_dir() / "classes" / digest.hexdigest()[:16]
    if not (target / COMPLETE_MARKER).exists():
        with lock_file(target.with_name(target.name + ".lock")):
            if not (target / COMPLETE_MARKER).exists():
                _compile(sources, jars, target)
    return target / "classes.jar"


def _compile(sources: Sequence[Path], jars: Path, target: Path) -> None:
    javac = find_program("javac", "compile our own client programs")
    target.mkdir(parents=True, exist_ok=True)
    command = [javac, "--release", "8", "-Xlint:-options", "-proc:none", "-encoding", "UTF-8"]
    with TemporaryDirectory() as classes:
        command += ["-cp", f"{jars}/*", "-d", classes, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"javac failed: {done.stderr.strip()[:2000]}")
        with ZipFile(target / "classes.jar", "w") as jar:
            for file in sorted(Path(classes).rglob("*.class")):
                jar.write(file, file.relative_to(classes))
    (target / COMPLETE_MARKER).touch()
