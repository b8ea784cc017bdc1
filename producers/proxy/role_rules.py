"""Rules of a config that say the role of a call from its words; where none matches, structure says it (gyre_engine.trees.roles).

The words never reach the tree: the proxy sees them, asks the rules, and writes the role into the call's record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gyre_engine.events.calls import Role


@dataclass(frozen=True, slots=True)
class RoleRule:
    """All that is given must hold. system, user: searched in the system text and in the last user message.

    tools: whether the call offers any; None: either.
    """

    role: Role
    system: re.Pattern[str] = field(default_factory=lambda: re.compile(""))
    user: re.Pattern[str] = field(default_factory=lambda: re.compile(""))
    tools: bool | None = None

    def holds(self, system: str, user: str, tools: bool) -> bool:
        """Whether the rule speaks of a call with these words."""
        fits = self.tools is None or self.tools == tools
        return fits and bool(self.system.search(system)) and bool(self.user.search(user))


def told_role(rules: Sequence[RoleRule], system: str, user: str, tools: bool) -> Role | None:
    """The role by the first rule that holds."""
    return next((rule.role for rule in rules if rule.holds(system, user, tools)), None)
