"""Rules of a config that tell a call's role from its words."""

from __future__ import annotations

import re

from gyre_engine.events.calls import Role
from producers.proxy.role_rules import RoleRule, told_role


def test_the_first_rule_whose_words_all_fit_says_the_role() -> None:
    rules = (
        RoleRule(Role.SIDE, system=re.compile("title"), tools=False),
        RoleRule(Role.SUB_AGENT, user=re.compile("^remember")),
        RoleRule(Role.MAIN_SUMMARY, tools=False),
    )
    assert told_role(rules, "write a title", "remember", False) is Role.SIDE
    assert told_role(rules, "write a title", "remember", True) is Role.SUB_AGENT
    assert told_role(rules, "you help", "summarise", False) is Role.MAIN_SUMMARY
    assert told_role(rules, "you help", "do it", True) is None
