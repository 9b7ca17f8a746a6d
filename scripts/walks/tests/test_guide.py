import textwrap

import pytest
import walk_guides

from walks.guide import Guide, GuideError, Step, read_guide


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "guide.md"
        path.write_text(textwrap.dedent(text))
        return read_guide(path)

    return read


def test_fenced_and_indented_blocks(read):
    guide = read("""\
        # Title

        <!-- walk: start | until "ready" | within 90 -->

            serve --memory     # in one terminal

        <!-- walk: run | exit 3 | shows "a b" | lacks warning -->
        ```sh
        first
        second
        ```

        - a list

            with a paragraph that is no block

        ```mermaid
        a --> b
        ```
        """)
    started, run = guide.steps
    assert started == Step(
        3, "start", "", "serve --memory     # in one terminal", until=("ready",), within_s=90.0
    )
    assert (run.text, run.exit_code, run.shows, run.lacks) == ("first\nsecond", 3, ("a b",), ("warning",))


def test_marks_without_a_block(read):
    guide = read("""\
        <!-- walk: checkout -->
        <!-- walk: needs java -->
        <!-- walk: type send 127.0.0.1:9876
             Orders 3 -->
        Text.
        <!-- walk: stop serve -->
        """)
    assert [(step.verb, step.argument) for step in guide.steps] == [
        ("checkout", ""),
        ("needs", "java"),
        ("type", "send 127.0.0.1:9876 Orders 3"),
        ("stop", "serve"),
    ]
    assert guide.steps[2].text == "send 127.0.0.1:9876 Orders 3"
    assert (guide.in_checkout, guide.needed_programs, guide.is_walked) == (True, ("java",), True)


def test_extras_are_those_that_the_guide_installs(read):
    guide = read("""\
        <!-- walk: install -->
        ```
        pip install '.[spark,delta]'
        ```
        """)
    assert guide.extras == ("delta", "spark")


def test_what_the_text_takes_as_given(read):
    guide = read("""\
        <!-- walk: install .[spark] -->
        <!-- walk: start serve --memory | until "ready" -->
        <!-- walk: python x = 1; print(x) | shows "1" -->
        Text.
        """)
    assert [(step.verb, step.text) for step in guide.steps] == [
        ("install", ".[spark]"),
        ("start", "serve --memory"),
        ("python", "x = 1; print(x)"),
    ]
    assert guide.extras == ("spark",)


@pytest.mark.parametrize(
    ("text", "has_commands"),
    [
        ("Text:\n\n    rmq-gateway serve\n", True),
        ("```\nsome output\n```\n\n```\n$ sudo make x\n```\n", True),
        ("Text:\n\n    A=1 spark-submit x\n", True),
        ("```python\nx = 1\n```\n", True),
        ("```toml\nmake = 1\n```\n", False),
        ("Text:\n\n    +0  u32  size\n    makes nothing\n", False),
        ("Text with `make test`.\n", False),
    ],
)
def test_pages_with_commands(read, text, has_commands):
    assert read(text).has_commands is has_commands


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- walk: ran -->\n\n    x\n", "guide.md:1: unknown walk mark 'ran'"),
        ("<!-- walk: run -->\nText.\n", "guide.md:1: no block follows the mark 'run'"),
        ("<!-- walk: run | exits 3 -->\n```\nx\n```\n", "unknown condition 'exits'"),
        ("<!-- walk: run -->\n```\nx\n```\n\n    y\n", "the blocks at lines 6 have no walk mark"),
        ("Text <!-- walk: checkout -->\n", "stands on lines of its own"),
    ],
)
def test_marks_that_cannot_be_used(read, text, problem):
    with pytest.raises(GuideError, match=problem):
        read(text)


def test_a_guide_without_marks_is_not_walked(read):
    assert not read("    make serve\n").is_walked


def test_every_guide_is_walked_or_listed_with_a_reason():
    assert walk_guides.find_disagreements(walk_guides.read_guides(), walk_guides.read_unwalked()) == []


def test_disagreements_are_named():
    walked = Guide(walk_guides.ROOT / "README.md", [Step(1, "run", "")])
    forgotten = Guide(walk_guides.ROOT / "docs" / "how-to" / "new.md")
    assert walk_guides.find_disagreements([walked, forgotten], {"README.md": "why", "docs/gone.md": ""}) == [
        "docs/how-to/new.md is not walked: mark its commands, or give the reason in scripts/walks/unwalked.toml",
        "scripts/walks/unwalked.toml lists README.md, which is walked",
        "scripts/walks/unwalked.toml lists docs/gone.md, which is not a guide",
        "scripts/walks/unwalked.toml has no reason for docs/gone.md",
    ]
