import contextlib

import pytest

from gateway.http_server.errors import ConsoleError
from gateway.shadow.clusters.full_sync import FullSync
from gateway.shadow.cutover.console_routes import CutoverConsoleRoutes
from gateway.shadow.cutover.tests.test_mover import broker, load, world
from gateway.shadow.tests.two_clusters import two_clusters
from remoting.bodies.topics import TopicConfig


class FakeConsole:
    """A console that only remembers the registered routes."""

    def __init__(self):
        self._handlers = {}

    def __getitem__(self, route):
        return self._handlers[route]

    def get(self, path, function):
        self._handlers["GET", path] = function

    def post(self, path, function):
        self._handlers["POST", path] = function


@contextlib.asynccontextmanager
async def serve_routes(primary, target):
    async with world(primary, target) as (gateway, nursery):
        console = FakeConsole()
        CutoverConsoleRoutes(gateway.mover, FullSync(gateway.checks.clusters)).register_routes(console)
        yield console, gateway, nursery


@two_clusters
async def test_a_topic_without_groups_is_not_taken_beyond_the_goal(primary, target):
    """Its next step is DONE, which cannot be undone."""
    async with serve_routes(primary, target) as (console, _, _):
        asked = {"topic": "orders", "to": "consumers_switched", "wait_s": 30, "confirmed": True}
        answer = await console["POST", "/cutover/advance"](asked)
        assert (answer["state"], answer["done"]) == ("PRODUCERS_SWITCHED", True)
        assert [step["to"] for step in answer["steps"]] == ["CAUGHT_UP", "PRODUCERS_SWITCHED"]
        answer = await console["POST", "/cutover/advance"]({**asked, "to": "done"})
        assert (answer["state"], answer["done"]) == ("DONE", True)


@two_clusters
async def test_move_through_the_console(primary, target):
    async with serve_routes(primary, target) as (console, gateway, nursery), load(gateway, nursery):
        advance, status = console["POST", "/cutover/advance"], console["GET", "/cutover"]
        assert status({}) == {"moves": []}
        answer = await advance({"topic": "orders", "to": "drained", "wait_s": 30})
        assert (answer["state"], answer["done"]) == ("DRAINED", True)
        assert [step["to"] for step in answer["steps"]] == ["CAUGHT_UP", "PRODUCERS_SWITCHED", "DRAINED"]
        assert {"check", "ok", "measured", "reason"} == answer["steps"][0]["checks"][0].keys()
        assert status({})["moves"][0]["overall_state"] == "DRAINED"
        (plan,) = (await console["GET", "/cutover/plan"]({}))["topics"]
        assert (plan["topic"], plan["state"], plan["steps"][0]["to"]) == (
            "orders",
            "DRAINED",
            "CONSUMERS_SWITCHED",
        )
        await advance({"topic": "orders", "wait_s": 30})
        answer = await console["POST", "/cutover/rollback"]({"topic": "orders", "all": True, "wait_s": 30})
        assert (answer["state"], [step["to"] for step in answer["steps"]]) == (
            "MIRRORING",
            ["ROLLING_BACK", "PRODUCERS_SWITCHED"],
        )


@two_clusters
async def test_the_step_that_cannot_be_undone_has_to_be_confirmed(primary, target):
    """`advance Orders --to Done` walked through it without asking."""
    async with serve_routes(primary, target) as (console, gateway, nursery), load(gateway, nursery):
        advance = console["POST", "/cutover/advance"]
        answer = await advance({"topic": "orders", "to": "Done", "wait_s": 30})
        assert (answer["state"], answer["done"]) == ("CONSUMERS_SWITCHED", False)
        assert "rollback refuses orders" in answer["confirm"]
        assert len(answer["steps"]) == 4, "those before it were taken"
        for confirmed in (None, False, "yes", 1):
            assert "confirm" in await advance({"topic": "orders", "confirmed": confirmed})
        answer = await advance({"topic": "orders", "wait_s": 30, "confirmed": True})
        assert (answer["state"], answer["done"], "confirm" in answer) == ("DONE", True, False)


@two_clusters
async def test_errors_have_http_statuses(primary, target):
    async with serve_routes(primary, target) as (console, gateway, _):
        for given, status in (
            ({}, 400),
            ({"topic": "orders", "allow": "everything"}, 400),
            ({"topic": "orders", "to": "nowhere"}, 400),
            ({"topic": "orders", "wait_s": "x"}, 400),
            ({"topic": "orders", "group": "GID"}, 409),
        ):
            with pytest.raises(ConsoleError) as error:
                await console["POST", "/cutover/advance"](given)
            assert error.value.status == status
        (plan,) = (await console["GET", "/cutover/plan"]({"topic": "orders", "group": "GID"}))["topics"]
        assert "producers have to be switched first" in plan["reason"]
        await primary.simulated.stop()
        with pytest.raises(ConsoleError) as error:
            await console["POST", "/cutover/advance"]({"topic": "orders"})
        assert error.value.status == 502


@two_clusters
async def test_sync_with_and_without_dry_run(primary, target):
    async with serve_routes(primary, target) as (console, gateway, _):
        sync = console["POST", "/cutover/sync"]
        broker(primary).topics.update([TopicConfig(topic_name="new")])
        rows = (await sync({"topics": "new", "dry_run": True}))["steps"]
        assert [(row["name"], row["action"]) for row in rows if row["kind"] == "topic"] == [("new", "create")]
        assert broker(target).topics.get("new") is None
        await sync({"topics": ["new"]})
        assert broker(target).topics.get("new") is not None


@pytest.mark.parametrize(
    "given",
    [
        {"topic": ["orders"]},
        {"topic": {"a": 1}},
        {"topic": 7},
        {"topic": "x" * 300},
        {"topic": "orders", "group": ["g"]},
        {"topic": "orders", "group": "x" * 300},
        {"topic": "orders", "allow": [{}]},
        {"topic": "orders", "allow": {"delays": 1}},
        {"topic": "orders", "allow": ["delays"] * 1001},
        {"topic": "orders", "wait_s": -1},
        {"topic": "orders", "wait_s": "nan"},
        {"topic": "orders", "wait_s": float("nan")},
        {"topic": "orders", "wait_s": 10**400},
        {"topic": "orders", "wait_s": [1]},
        {"topic": "orders", "to": ["drained"]},
    ],
)
@two_clusters
async def test_requests_without_sense_are_refused(primary, target, given):
    async with serve_routes(primary, target) as (console, *_):
        for path in ("/cutover/advance", "/cutover/rollback"):
            if "to" in given and path.endswith("rollback"):
                continue
            with pytest.raises(ConsoleError) as error:
                await console["POST", path](given)
            assert error.value.status == 400


@pytest.mark.parametrize("names", [[1], ["x" * 300], ["t"] * 1001, {"a": 1}, 7])
@two_clusters
async def test_lists_of_names_without_sense_are_refused(primary, target, names):
    async with serve_routes(primary, target) as (console, *_):
        for name in ("topics", "groups"):
            with pytest.raises(ConsoleError):
                await console["POST", "/cutover/sync"]({name: names, "dry_run": True})
