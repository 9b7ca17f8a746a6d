"""Switches the mirror mode of a topic, and with it the cluster that leads the topic.

Usually sends go to the primary and are mirrored to the target. In mode target-primary they go to the target and are
copied back to the primary, where consumers stay. The mirror copies them back; `mover` moves consumers.
"""

from gateway.http_server.errors import OperationRefused
from gateway.shadow.cutover.checks import MoveCheck
from gateway.shadow.cutover.director import MoveDirector
from gateway.shadow.cutover.mover import Mover, all_hold
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.rules import ModeOverrides
from gateway.shadow.mirror.settings import MODES
from gateway.shadow.traffic.exchange import Side
from storage.errors import StoreFull


class ModeSwitch:
    """Changes modes of topics while the gateway runs.

    The lead changes only when the side that follows has every message. Sends of the topic are held for that moment,
    so that both sides store messages in the same order.
    """

    def __init__(
        self, mirrors: Mirror, mover: Mover, director: MoveDirector, overrides: ModeOverrides
    ) -> None:
        self._overrides = overrides
        self._mirrors = mirrors
        self._mover = mover
        self._director = director

    def restore_modes(self) -> None:
        """Set the modes again that were set before the last stop; call it before moves are resumed."""
        for topic, mode in self._overrides.modes.items():
            self._mirrors.set_mode(topic, mode)

    async def _set_mode(self, topic: str, mode: str) -> None:
        """Write the mode to the file first, so that a gateway that is killed continues with the mode that counted."""
        try:
            await self._overrides.save_mode(topic, mode)
        except (OSError, StoreFull) as problem:
            raise OperationRefused(f"the mode could not be stored: {problem}") from problem
        self._mirrors.apply_mode(topic, mode)

    async def switch_mode(self, topic: str, mode: str) -> None:
        """Set a mode; "" restores the mode of the topic's rule.

        Raises ValueError for an unknown mode, CLUSTER_ERRORS, LookupError, and OperationRefused with the reason if the
        lead was not changed; then nothing has changed.
        """
        if mode and mode not in MODES:
            raise ValueError(f"{mode!r} is not one of {', '.join(MODES)}")
        async with self._mover.step_lock:
            state = self._mover.move_file.get_move(topic)
            if state.is_under_way:
                raise OperationRefused(
                    f"{topic} is {state.overall_state.value}: while a topic is being moved its mode cannot be changed"
                )
            target_will_lead = self._mirrors.rules.target_would_lead(topic, mode)
            if target_will_lead == self._mirrors.rules.target_leads(topic):
                await self._set_mode(topic, mode)
                return
            checks: list[MoveCheck] = []
            change_lead = self._give_lead_to_target if target_will_lead else self._return_lead_to_primary
            if not await change_lead(topic, mode, checks):
                wrong = [
                    f"{check.name}: {check.measured}, {check.reason}" for check in checks if not check.ok
                ]
                raise OperationRefused("; ".join(wrong))

    async def _give_lead_to_target(self, topic: str, mode: str, checks: list[MoveCheck]) -> bool:
        """Let sends go to the target, once it has every message of the primary."""
        if self._mirrors.rules.mirrors_only_part(topic):
            raise OperationRefused(
                f"the rule of {topic} must choose by topics alone: what it leaves out would not come back"
            )
        await self._mover.refresh_clusters()
        checks += await self._mover.checks.check_reached(topic)
        checks += (await self._mover.checks.check_held_back(topic, Side.PRIMARY))[:1]
        if not all_hold(checks):
            return False
        # Sends must be counted before they are held: the pause waits for those that are not answered.
        self._director.watch_sends(topic, watched=True)
        done = False
        async with self._mover.hold_sends(topic, checks):
            await self._mover.repeat_until_ok(checks, lambda: self._mover.checks.check_quiet(topic))
            await self._set_mode(topic, mode)
            done = True
        self._director.watch_sends(topic, watched=done)
        return done

    async def _return_lead_to_primary(self, topic: str, mode: str, checks: list[MoveCheck]) -> bool:
        """Let sends go to the primary again, once it has every message of the target."""
        checks += (await self._mover.checks.check_held_back(topic, Side.TARGET))[:1]
        if not all_hold(checks):
            return False
        self._director.watch_sends(topic, watched=True)
        done = False
        async with self._mover.hold_sends(topic, checks):
            await self._mover.repeat_until_ok(checks, lambda: self._mover.checks.check_sends_returned(topic))
            await self._set_mode(topic, mode)
            done = True
        # After a refusal the target still leads, and its sends are watched as long as it does.
        self._director.watch_sends(topic, watched=not done)
        return done
