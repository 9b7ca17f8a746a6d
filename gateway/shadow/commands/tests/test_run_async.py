"""No exception group reaches a user, however deep the nurseries."""

import click
import pytest
import trio

from gateway.shadow.commands.run_async import run_async
from toolkit.exit_codes import ExitCode
from toolkit.settings import SettingsError


async def fail_inside(depth, *errors):
    async with trio.open_nursery() as nursery:
        if depth:
            nursery.start_soon(fail_inside, depth - 1, *errors)
        else:
            for error in errors:
                nursery.start_soon(raise_it, error)


async def raise_it(error):
    raise error


def test_results_are_returned():
    async def double(number):
        return 2 * number

    assert run_async(double, 3) == 6


def test_the_causes_are_the_message():
    with pytest.raises(click.ClickException) as failure:
        run_async(fail_inside, 3, OSError("no one answers at a:1"))
    assert failure.value.message == "no one answers at a:1"
    assert failure.value.exit_code == ExitCode.FAILED


def test_wrong_settings_have_their_exit_code():
    with pytest.raises(click.ClickException) as failure:
        run_async(fail_inside, 2, SettingsError("target.kind: wrong"))
    assert (failure.value.message, failure.value.exit_code) == ("target.kind: wrong", ExitCode.USAGE)


def test_equal_causes_are_said_once():
    with pytest.raises(click.ClickException, match=r"^gone$"):
        run_async(fail_inside, 0, OSError("gone"), OSError("gone"))


def test_a_defect_keeps_its_trace():
    with pytest.raises(AttributeError, match="typo"):
        run_async(fail_inside, 2, AttributeError("typo"))
