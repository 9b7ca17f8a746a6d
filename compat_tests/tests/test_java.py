"""Java command lines and the cache of compiled programs, with scripts in place of the JDK."""

import stat
from pathlib import Path

import pytest

from compat_tests.jars import java
from compat_tests.jars.java import compile_jar, java_command


@pytest.fixture
def jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("java", "javac"):
        (folder / name).write_text('#!/bin/sh\necho "$@" >> "$0.calls"\n')
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "fetch_jars", lambda profile: Path("/jars") / profile)
    return folder


def test_command_line(jdk: Path) -> None:
    home = Path("/h")
    command = java_command("client-4.9", "Main", home, heap="-Xms1m -Xmx2m", classes=[Path("/mine")])
    assert command[0] == str(jdk / "java")
    assert command[1:3] == ["-Xms1m", "-Xmx2m"]
    assert command[-1] == "Main"
    folders = command[command.index("-cp") + 1].split(":")
    assert folders == ["/jars/client-4.9/*", "/mine"]
    assert f"-Drmq.logback.configurationFile={java.LOGBACK}/rmq.logback.xml" in command
    assert "-Duser.home=/h" in command
    assert "-Dcompat.log=/h/java.log" in command


def test_classes_are_mapped_from_the_archive_of_the_profile(jdk: Path) -> None:
    def command(profile: str) -> list[str]:
        return [word for word in java_command(profile, "Main", Path("/h")) if "Archive" in word]

    archive = java.archive_path(Path("/jars/client-4.9"))
    assert command("client-4.9") == []
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert command("client-4.9") == [f"-XX:SharedArchiveFile={archive}"]
    assert command("client-5.5") == []
    plain = java_command("client-4.9", "Main", Path("/h"), mapped=False)
    assert not [word for word in plain if "Archive" in word]


def test_properties_win_over_our_own(jdk: Path) -> None:
    command = java_command("client-4.9", "Main", Path("/h"), properties={"user.home": "/other", "a": "b"})
    assert [word for word in command if word.startswith("-Duser.home")] == ["-Duser.home=/other"]
    assert "-Da=b" in command


def test_log_settings_exist_where_the_property_points() -> None:
    assert "${compat.log" in (java.LOGBACK / "rmq.logback.xml").read_text()


def test_compiles_again_only_when_a_source_changes(jdk: Path, tmp_path: Path) -> None:
    source = tmp_path / "A.java"
    source.write_text("class A {}")
    first = compile_jar([source], "client-4.9")
    assert compile_jar([source], "client-4.9") == first
    source.write_text("class A { int a; }")
    assert compile_jar([source], "client-4.9") != first
    assert len((jdk / "javac.calls").read_text().splitlines()) == 2


def test_a_wrong_source_gives_the_compiler_s_words_and_is_not_cached(jdk: Path, tmp_path: Path) -> None:
    (jdk / "javac").write_text("#!/bin/sh\necho A.java:1: error >&2; exit 1\n")
    source = tmp_path / "A.java"
    source.write_text("class")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"A\.java:1: error"):
            compile_jar([source], "client-4.9")
