"""Which rule takes an exchange, whether its share is mirrored, and the mode of each topic, changed while running.

Not responsible for what a mode does (mirrors and holding are).
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from gateway.shadow.mirror.settings import MODES, TARGET_PRIMARY, MirrorRule
from gateway.shadow.traffic.request_policy import SENDS, UPDATE_CONSUMER_OFFSET, Way, policy_of
from gateway.shadow.traffic.subject import Subject, share_of
from remoting.declare import REQUESTS
from toolkit.settings import SettingsError

_MAX_CACHE_ENTRIES: Final = 20_000
_SAMPLED_CODES: Final = SENDS | {UPDATE_CONSUMER_OFFSET}


class MirrorRules:
    """The rules in their order; the first that matches takes an exchange, also if its sample then leaves it out."""

    def __init__(self, rules: Sequence[MirrorRule]) -> None:
        self.rules = tuple(rules)
        self._codes_by_rule = [_resolve_codes(rule, index) for index, rule in enumerate(self.rules)]
        self._rule_cache: dict[tuple[int, str, str, str], int | None] = {}
        self._overrides: dict[str, str] = {}
        self._target_leads_cache: dict[str, bool] = {}
        _check_target_primary_rules(self.rules)

    def find_rule(self, code: int, subject: Subject, client: str) -> int | None:
        """The index of the rule that takes it; None when there is none."""
        host = client.rpartition(":")[0]
        asked = code, subject.topic, subject.group, host
        if asked in self._rule_cache:
            return self._rule_cache[asked]
        if len(self._rule_cache) >= _MAX_CACHE_ENTRIES:
            self._rule_cache.clear()
        matching = (index for index, _ in enumerate(self.rules) if self._rule_matches(index, *asked))
        found = self._rule_cache[asked] = next(matching, None)
        return found

    def _rule_matches(self, index: int, code: int, topic: str, group: str, host: str) -> bool:
        rule = self.rules[index]
        return (
            code in self._codes_by_rule[index]
            and _matches_any(rule.topics, topic)
            and _matches_any(rule.groups, group)
            and _matches_any(rule.clients, host)
        )

    def mirrored_codes(self) -> frozenset[int]:
        """Every request code that some rule takes."""
        return frozenset[int]().union(*self._codes_by_rule)

    def is_sampled(self, index: int, code: int, subject: Subject) -> bool:
        """Whether an exchange belongs to the share that is mirrored; what is no message always does."""
        rule = self.rules[index]
        if rule.sample >= 1 or code not in _SAMPLED_CODES:
            return True
        if rule.sample_by == "queue" or code == UPDATE_CONSUMER_OFFSET:
            return share_of(subject.topic, str(subject.queue_id)) < rule.sample
        return share_of(subject.topic, subject.key) < rule.sample

    # -- modes --------------------------------------------------------------------------------------------------

    def effective_mode(self, index: int, topic: str) -> str:
        """The topic's mode if one was set, else the rule's."""
        return self._overrides.get(topic) or self.rules[index].mode

    def set_mode(self, topic: str, mode: str) -> None:
        """Sets the mode of a topic, whatever rule takes it. Raises ValueError for what is no mode."""
        if mode not in MODES:
            raise ValueError(f"{mode!r} is none of {', '.join(MODES)}")
        self._overrides[topic] = mode
        self._target_leads_cache.clear()

    def reset_mode(self, topic: str) -> None:
        """Gives a topic the mode of its rule again."""
        self._overrides.pop(topic, None)
        self._target_leads_cache.clear()

    def mode_overrides(self) -> dict[str, str]:
        """The topics whose mode was set."""
        return dict(self._overrides)

    def target_leads(self, topic: str) -> bool:
        """Whether sends of a topic go to the target first: its mode is target-primary."""
        known = self._target_leads_cache.get(topic)
        if known is None:
            if len(self._target_leads_cache) >= _MAX_CACHE_ENTRIES:
                self._target_leads_cache.clear()
            known = self._target_leads_cache[topic] = self.target_would_lead(
                topic, self._overrides.get(topic, "")
            )
        return known

    def target_would_lead(self, topic: str, mode: str) -> bool:
        """Whether they would with this mode; "" is that of the rule."""
        index = self.find_topic_rule(topic)
        return index is not None and (mode or self.rules[index].mode) == TARGET_PRIMARY

    def rule_mode(self, topic: str) -> str:
        """The mode that the first rule that names a topic gives it; "" when none does."""
        index = self.find_topic_rule(topic)
        return "" if index is None else self.rules[index].mode

    def find_topic_rule(self, topic: str) -> int | None:
        """The first rule that names a topic."""
        return next(
            (index for index, rule in enumerate(self.rules) if _matches_any(rule.topics, topic)), None
        )

    def mirrors_only_part(self, topic: str) -> bool:
        """Whether only part of a topic's sends is mirrored, or by several rules."""
        index = self.find_topic_rule(topic)
        return index is None or not _takes_whole_topics(self.rules[index])

    def any_mode_in_use(self, modes: Sequence[str]) -> bool:
        """Whether any rule or topic has one of these modes."""
        return any(rule.mode in modes for rule in self.rules) or any(
            mode in modes for mode in self._overrides.values()
        )


def _takes_whole_topics(rule: MirrorRule) -> bool:
    """Whether a rule takes everything of its topics."""
    everything = ["*"]
    return rule.groups == rule.clients == everything and not rule.codes and rule.sample >= 1


def _check_target_primary_rules(rules: Sequence[MirrorRule]) -> None:
    """Raises SettingsError where sends might go to the target that no rule brings back."""
    last = max((index for index, rule in enumerate(rules) if rule.mode == TARGET_PRIMARY), default=-1)
    for index, rule in enumerate(rules[: last + 1]):
        if not _takes_whole_topics(rule):
            raise SettingsError(
                f"mirror[{index}]: rules with, and before one with, the mode target-primary must choose by topics alone"
            )


def _matches_any(patterns: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _resolve_codes(rule: MirrorRule, index: int) -> frozenset[int]:
    """The codes a rule takes. Raises SettingsError for what is no request code, and for one that is never mirrored."""
    mirrored = {
        request.NAME: code for code, request in REQUESTS.items() if policy_of(code).way is not Way.LEFT_OUT
    }
    known = {request.NAME: code for code, request in REQUESTS.items()}
    for name in rule.codes:
        if name not in known:
            raise SettingsError(f"mirror[{index}].codes: {name!r} is no request code")
        if name not in mirrored:
            raise SettingsError(
                f"mirror[{index}].codes: {name} is never mirrored: {policy_of(known[name]).reason}"
            )
    return frozenset(mirrored[name] for name in rule.codes or mirrored)
