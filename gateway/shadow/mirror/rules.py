"""Finds the mirror rule of an exchange, tells whether it is in the rule's sample, and holds the mode of each topic.

The first rule that matches applies, even if its sample then leaves the exchange out. Operators and moves override modes
at run time; `mirror.py` and `answer_holder.py` act on the modes. `ModeOverrides` is the file of the operators' modes.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.mirror.settings import MODES, TARGET_PRIMARY, MirrorRule
from gateway.shadow.traffic.request_policy import SEND_CODES, UPDATE_CONSUMER_OFFSET, Treatment, policy_of
from gateway.shadow.traffic.subject import Subject, stable_share
from remoting.declare import REQUESTS
from toolkit.settings import SettingsError

_MAX_CACHE_ENTRIES: Final = 20_000
_SAMPLED_CODES: Final = SEND_CODES | {UPDATE_CONSUMER_OFFSET}


class MirrorRules:
    """The rules in their order, and the mode overrides. Raises SettingsError for rules that contradict each other."""

    def __init__(self, rules: Sequence[MirrorRule]) -> None:
        self.rules = tuple(rules)
        self._codes_by_rule = [_resolve_codes(rule, index) for index, rule in enumerate(self.rules)]
        self._rule_cache: dict[tuple[int, str, str, str], int | None] = {}
        self._overrides: dict[str, str] = {}
        self._target_leads_cache: dict[str, bool] = {}
        _check_target_primary_rules(self.rules)

    def find_rule(self, code: int, subject: Subject, client: str) -> int | None:
        """Return the index of the first matching rule; None when no rule matches."""
        host = client.rpartition(":")[0]
        key = code, subject.topic, subject.group, host
        if key in self._rule_cache:
            return self._rule_cache[key]
        # Clients make up topics and groups.
        if len(self._rule_cache) >= _MAX_CACHE_ENTRIES:
            self._rule_cache.clear()
        matching = (index for index, _ in enumerate(self.rules) if self._rule_matches(index, *key))
        index = self._rule_cache[key] = next(matching, None)
        return index

    def _rule_matches(self, index: int, code: int, topic: str, group: str, host: str) -> bool:
        rule = self.rules[index]
        return (
            code in self._codes_by_rule[index]
            and _matches_any(rule.topics, topic)
            and _matches_any(rule.groups, group)
            and _matches_any(rule.clients, host)
        )

    def mirrored_codes(self) -> frozenset[int]:
        """Return all request codes that some rule mirrors."""
        return frozenset[int]().union(*self._codes_by_rule)

    def is_sampled(self, index: int, code: int, subject: Subject) -> bool:
        """Tell whether an exchange is in the rule's sample; exchanges other than messages and offsets always are."""
        rule = self.rules[index]
        if rule.sample >= 1 or code not in _SAMPLED_CODES:
            return True
        if rule.sample_by == "queue" or code == UPDATE_CONSUMER_OFFSET:
            return stable_share(subject.topic, str(subject.queue_id)) < rule.sample
        return stable_share(subject.topic, subject.key) < rule.sample

    # -- modes --------------------------------------------------------------------------------------------------

    def effective_mode(self, index: int, topic: str) -> str:
        """Return the override of a topic, or else the mode of the rule."""
        return self._overrides.get(topic) or self.rules[index].mode

    def set_mode(self, topic: str, mode: str) -> None:
        """Override the mode of a topic, whichever rule matches it. Raises ValueError for an unknown mode."""
        if mode not in MODES:
            raise ValueError(f"invalid mode {mode!r} (expected {', '.join(MODES)})")
        self._overrides[topic] = mode
        self._target_leads_cache.clear()

    def reset_mode(self, topic: str) -> None:
        """Clear the override of a topic."""
        self._overrides.pop(topic, None)
        self._target_leads_cache.clear()

    def mode_overrides(self) -> dict[str, str]:
        """Return the overrides by topic."""
        return dict(self._overrides)

    def target_leads(self, topic: str) -> bool:
        """Tell whether sends of a topic go to the target first, because its mode is target-primary."""
        leads = self._target_leads_cache.get(topic)
        if leads is None:
            if len(self._target_leads_cache) >= _MAX_CACHE_ENTRIES:
                self._target_leads_cache.clear()
            leads = self._target_leads_cache[topic] = self.target_would_lead(
                topic, self._overrides.get(topic, "")
            )
        return leads

    def target_would_lead(self, topic: str, mode: str) -> bool:
        """Tell whether sends of a topic would go to the target first with this override; "" stands for none."""
        index = self.find_topic_rule(topic)
        return index is not None and (mode or self.rules[index].mode) == TARGET_PRIMARY

    def rule_mode(self, topic: str) -> str:
        """Return the mode of the first rule for a topic; "" when there is no rule for it."""
        index = self.find_topic_rule(topic)
        return "" if index is None else self.rules[index].mode

    def find_topic_rule(self, topic: str) -> int | None:
        """Return the index of the first rule for a topic, whatever else the rule selects by."""
        return next(
            (index for index, rule in enumerate(self.rules) if _matches_any(rule.topics, topic)), None
        )

    def mirrors_only_part(self, topic: str) -> bool:
        """Tell whether only part of a topic is mirrored by its first rule."""
        index = self.find_topic_rule(topic)
        return index is None or not _takes_whole_topics(self.rules[index])

    def any_mode_in_use(self, modes: Sequence[str]) -> bool:
        """Tell whether any rule or override has one of these modes."""
        return any(rule.mode in modes for rule in self.rules) or any(
            mode in modes for mode in self._overrides.values()
        )


def _takes_whole_topics(rule: MirrorRule) -> bool:
    """Tell whether a rule selects by topic alone and mirrors everything of its topics."""
    everything = ["*"]
    return rule.groups == rule.clients == everything and not rule.codes and rule.sample >= 1


def _check_target_primary_rules(rules: Sequence[MirrorRule]) -> None:
    """Raise SettingsError if sends could go to the target without being mirrored back."""
    last = max((index for index, rule in enumerate(rules) if rule.mode == TARGET_PRIMARY), default=-1)
    for index, rule in enumerate(rules[: last + 1]):
        if not _takes_whole_topics(rule):
            raise SettingsError(
                f"mirror[{index}]: rules with mode target-primary, and all before one, must select by topics alone"
            )


def _matches_any(patterns: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _resolve_codes(rule: MirrorRule, index: int) -> frozenset[int]:
    """Return the request codes of a rule. Raises SettingsError for an unknown code and for one never mirrored."""
    mirrored = {
        request.NAME: code
        for code, request in REQUESTS.items()
        if policy_of(code).treatment is not Treatment.LEFT_OUT
    }
    all_codes = {request.NAME: code for code, request in REQUESTS.items()}
    for name in rule.codes:
        if name not in all_codes:
            raise SettingsError(f"mirror[{index}].codes: unknown request code {name!r}")
        if name not in mirrored:
            raise SettingsError(
                f"mirror[{index}].codes: {name} is never mirrored: {policy_of(all_codes[name]).reason}"
            )
    return frozenset(mirrored[name] for name in rule.codes or mirrored)


class ModeOverrides:
    """The modes of topics that an operator set at run time, in a file, so that they survive a restart.

    An override in `modes` takes precedence over the mode of the topic's rule until it is cleared. Without a path they
    are in memory only. Moves have their own file (`cutover/move_file.py`).

    Raises SettingsError for a file that cannot be read.
    """

    def __init__(
        self, files: SmallFiles, path: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        loss = "every topic has the mode of its rule"
        self._file = StateFile(files, path, "the modes of topics", run_blocking, loss=loss)
        self.modes: Mapping[str, str] = self._file.read(_parse_modes) or {}

    async def save_mode(self, topic: str, mode: str) -> None:
        """Save the mode of a topic; "" removes its override. One call at a time.

        Raises OSError or StoreFull, and then nothing has changed.
        """
        after = {**self.modes, topic: mode}
        if not mode:
            del after[topic]
        await self._file.write(modes=after)
        self.modes = after


def _parse_modes(value: Any) -> dict[str, str]:
    """Return the modes in a file's content. Raises ValueError, TypeError or KeyError when they are malformed."""
    modes = {str(topic): str(mode) for topic, mode in value["modes"].items()}
    unknown = [mode for mode in modes.values() if mode not in MODES]
    if unknown:
        raise ValueError(f"unknown mode {unknown[0]!r}")
    return modes
