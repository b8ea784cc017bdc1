"""The words around every task: the system text and the one tool. The rendered training text and the live harness must
agree on them byte for byte.

The chat format is `renderers.Qwen3Renderer` with its default config: it adds no <think> block to the generation prompt
(with `enable_thinking=False` it would prefill an empty one, four tokens a turn).
"""

from typing import Any, Final

SYSTEM: Final = "Write solution.py, then say done."
"""The system message, whole."""

FINAL: Final = "done"
"""What a demonstration says when it ends its episode."""

PATH: Final = "solution.py"
"""The file that the task asks for."""

MAX_WRITES: Final = 3
"""Tool calls that an episode may make; one more model call ends it."""

WRITE_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "write",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
}
"""The OpenAI function tool that the harness offers; the order of the keys counts, since it is rendered as JSON."""


def opening_messages(instruction: str) -> list[dict[str, Any]]:
    """The first two messages of an episode; `instruction` is instruction.md, stripped."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction.strip()}]


def write_message(source: str) -> dict[str, Any]:
    """The assistant's message that writes `source` to solution.py."""
    call = {"type": "function", "function": {"name": "write", "arguments": {"path": PATH, "content": source}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
