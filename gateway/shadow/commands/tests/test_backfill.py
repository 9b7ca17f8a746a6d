import click
import pytest
from click.testing import CliRunner

from gateway.shadow.commands.backfill import parse_size
from gateway.shadow.commands.root import shadow


def run(*arguments):
    tables = ('primary.namesrv=["127.0.0.1:1"]', 'target.namesrv=["127.0.0.1:2"]', 'target.kind="ours"')
    sets = [word for table in tables for word in ("--set", table)]
    return CliRunner().invoke(shadow, [*sets, "backfill", *arguments])


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500K", 512_000), ("1.5m", 1_572_864), ("10MB", 10_485_760)]
)
def test_sizes_have_units(text, size):
    assert parse_size(None, None, text) == size


def test_other_sizes_are_refused():
    with pytest.raises(click.BadParameter, match="not a number of bytes"):
        parse_size(None, None, "fast")


def test_unreachable_primary_is_reported():
    result = run("--topics", "orders")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


def test_topics_must_be_named():
    assert run().exit_code == 2


def test_other_target_kind_is_refused():
    tables = ('primary.namesrv=["127.0.0.1:1"]', 'target.namesrv=["127.0.0.1:2"]')
    sets = [word for table in tables for word in ("--set", table)]
    result = CliRunner().invoke(shadow, [*sets, "backfill", "-t", "orders"])
    assert (result.exit_code, "offsets of its own" in result.output) == (1, True)
