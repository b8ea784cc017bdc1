"""The tools of a Responses request: all are offered to the model as functions, and their calls go back as what they were.

A custom tool, whose input is free text, is offered as a function with the one string argument `input`. The tools of a
namespace are offered as `namespace__name`. What only OpenAI's servers can run is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gyre_engine.trees.conversation import ToolCall
from producers.proxy.dialects.body import few, spelled
from producers.proxy.exchange import malformed

_SCHEMA_ORDER = {name: at for at, name in enumerate(("type", "description", "properties", "required"))}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its client knows it. namespace: empty where it stands alone; custom: it takes free text."""

    name: str
    namespace: str
    custom: bool


@dataclass(frozen=True, slots=True)
class Tools:
    """The offered tools.

    offered: in OpenAI's function form
    by_name: the tool behind each name that the model is told
    names:   (namespace, name) -> the name that the model is told
    notes:   what was left out
    """

    offered: list[dict[str, Any]] = field(default_factory=list)
    by_name: dict[str, Tool] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def told(self, namespace: str, name: str) -> str:
        """The name that the model is told of a tool, also of one that is offered no more."""
        return self.names.get((namespace, name)) or _joined(namespace, name)

    def asked(self, call: ToolCall) -> Tool:
        """The tool that a sampled call means; one that was never offered is a function of that name."""
        return self.by_name.get(call.name) or Tool(call.name, "", custom=False)


def read_tools(raw: Any) -> Tools:
    """The tools of a request. Raises ProxyError (400) naming the tool."""
    tools, left_out = Tools(), []
    for where, namespace, about, tool in _flat(raw):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            left_out.append(f"tool of type {str(kind)[:40]} left out")
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise malformed(f"{where} must have a name", f"{where}.name")
        if (namespace, name) in tools.names:
            left_out.append(f"tool {name[:40]} given twice")
            continue
        told = _free(_joined(namespace, name), tools.by_name)
        tools.names[namespace, name] = told
        tools.by_name[told] = Tool(name, namespace, kind == "custom")
        tools.offered.append(_function(told, about, tool, where))
    return Tools(tools.offered, tools.by_name, tools.names, few(left_out))


def free_text(arguments: str) -> str:
    """The input of a custom tool in a call's arguments; arguments of another form are the input as they stand."""
    try:
        fields = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    found = fields.get("input") if isinstance(fields, dict) else None
    return found if isinstance(found, str) else arguments


def as_arguments(free: str) -> str:
    """A custom tool's input as arguments of the function that it is offered as."""
    return spelled({"input": free})


def _flat(raw: Any) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Each tool with where it stands, its namespace, and what is to be said of the namespace (at its first tool)."""
    for where, tool in _listed(raw, "tools"):
        if tool.get("type") != "namespace":
            yield where, "", "", tool
            continue
        namespace, about = tool.get("name"), tool.get("description")
        if not isinstance(namespace, str) or not namespace:
            raise malformed(f"{where} must have a name", f"{where}.name")
        for inner, nested in _listed(tool.get("tools"), f"{where}.tools"):
            yield inner, namespace, about if isinstance(about, str) else "", nested
            about = ""


def _listed(raw: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise malformed(f"{where} must be a list of objects", where)
    return [(f"{where}[{index}]", tool) for index, tool in enumerate(raw)]


def _joined(namespace: str, name: str) -> str:
    return f"{namespace.rstrip('_')}__{name.lstrip('_')}" if namespace else name


def _free(name: str, taken: Mapping[str, Tool]) -> str:
    """`name`, or where another tool has it already, one that nobody has."""
    while name in taken:
        name += "_"
    return name


def _function(told: str, about: str, tool: dict[str, Any], where: str) -> dict[str, Any]:
    description = tool.get("description")
    texts = [about, description if isinstance(description, str) else ""]
    found: dict[str, Any] = {"name": told}
    if tool["type"] == "custom":
        texts.append(_grammar(tool.get("format")))
        parameters: Any = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    else:
        parameters = tool.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise malformed(f"{where}.parameters must be an object", f"{where}.parameters")
    if whole := "\n\n".join(text for text in texts if text):
        found["description"] = whole
    if parameters is not None:
        found["parameters"] = _sorted(parameters)
    return {"type": "function", "function": found}


def _grammar(form: Any) -> str:
    definition = form.get("definition") if isinstance(form, dict) else None
    return f"The input follows this {form.get('syntax')} grammar:\n{definition}" if isinstance(definition, str) else ""


def _sorted(value: Any) -> Any:
    """A schema whose text does not depend on the order of keys, which some clients shuffle."""
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _sorted(value[key]) for key in sorted(value, key=lambda key: (_SCHEMA_ORDER.get(key, 9), key))}
    properties, required = found.get("properties"), found.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        first = {name: at for at, name in reversed(list(enumerate(required))) if isinstance(name, str)}
        found["properties"] = {
            name: properties[name] for name in sorted(properties, key=lambda name: (first.get(name, 1 << 30), name))
        }
    return found
