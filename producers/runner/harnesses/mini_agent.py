"""`mini`: the smallest agent that is one. A loop of chat completions and two tools, `write` and `bash`; for models that call no
tools, a file that keeps what they answer.

Runs inside the sandbox as `python3 -I -S mini_agent.pyc CONFIG`. Starting is what costs in short executions, so it imports
nothing that takes long: `_socket` and `_json` are the C halves of `socket` and `json`, which take 15 ms each to import.
Each tool result and the end are a JSON line on stdout; the exit code says how it ended.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

COMPLETED, TURN_BUDGET, TOKEN_BUDGET, CONTEXT_LIMIT, ENDPOINT_LOST, REFUSED = 0, 10, 11, 12, 75, 76

TOOLS = {
    "write": {
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
    },
    "bash": {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a shell command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
}


def _json_codec() -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    """(loads, dumps) from the C accelerator where it is as in CPython 3.11 to 3.13, else from `json`."""
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        fields: dict[str, Any] = {"strict": False, "object_hook": None, "object_pairs_hook": None, "memo": {}}
        numbers = {"parse_float": float, "parse_int": int, "parse_constant": float}
        context: Any = type("Context", (), {**fields, **numbers})
        scan = make_scanner(context)
        encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)

        def loads(text: str) -> Any:
            text = text.strip(" \t\r\n")
            try:
                value, end = scan(text, 0)
            except (StopIteration, SystemError) as stop:  # SystemError: CPython 3.11 where json.decoder is not imported
                raise ValueError("not JSON") from stop
            if end != len(text):
                raise ValueError("more than one JSON value")
            return value

        def dumps(value: Any) -> str:
            return "".join(encode(value, 0))

        if loads(dumps({"a": [1, "é", None]})) == {"a": [1, "é", None]}:
            return loads, dumps
    except (ImportError, TypeError, AttributeError):
        pass  # another Python: the slower way below says the same
    import json

    return json.loads, json.dumps


def _refuse(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


loads, dumps = _json_codec()


class End(Exception):
    """The agent ends, with this exit code."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class Dropped(Exception):
    """A request got no whole answer: ask again."""


class Endpoint:
    """The chat endpoint over one kept connection; waits out restarts of what is behind it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.key, self.patience, self.call_limit = os.environ["GYRE_API_KEY"], config["patience_s"], config["call_limit_s"]
        self.socket_path, self.base = config["socket"], config["base_url"]
        self.connection: _socket.socket | None = None
        self.buffer = b""

    def ask(self, body: bytes) -> Any:
        """The answer's JSON, trying again while there is patience."""
        deadline, pause, tries = time.monotonic() + self.patience, 0.2, 0
        while True:
            try:
                status, headers, data = self._request(body, tries)
                if status == 200:
                    return loads(data.decode())
                wait = self._refused(status, headers, data)
            except (OSError, Dropped, ValueError) as error:
                self.connection, wait, data = None, 0.0, str(error).encode()
            if time.monotonic() > deadline:
                raise End(ENDPOINT_LOST, f"no answer within {self.patience:g} s: {data[:200]!r}")
            time.sleep(max(pause, min(wait, 30.0)))
            pause, tries = min(pause * 2, 4.0), tries + 1

    def _refused(self, status: int, headers: dict[str, str], data: bytes) -> float:
        """Seconds to wait before the next try; raises End where trying again cannot help."""
        if status == 429 or status >= 500:
            wait = headers.get("retry-after", "0")
            return float(wait) if wait.replace(".", "", 1).isdigit() else 0.0
        text = data.decode(errors="replace")
        if "context_length_exceeded" in text:
            raise End(CONTEXT_LIMIT, text[:200])
        raise End(REFUSED, f"status {status}: {text[:200]}")

    def _request(self, body: bytes, tries: int) -> tuple[int, dict[str, str], bytes]:
        if self.connection is None:
            self.connection, self.buffer = self._connect(), b""
        again = f"x-stainless-retry-count: {tries}\r\n" if tries else ""
        path = self.base.split("://", 1)[-1]
        host, _, prefix = path.partition("/")
        head = (
            f"POST /{prefix}/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\n{again}content-length: {len(body)}\r\n\r\n"
        )
        self._send(head.encode() + body)
        return self._answer()

    @property
    def _open(self) -> _socket.socket:
        if self.connection is None:
            raise Dropped("the connection is closed")
        return self.connection

    def _connect(self) -> _socket.socket:
        if self.socket_path:
            connection, address = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM), self.socket_path
        else:
            host, _, port = self.base.split("://", 1)[-1].split("/")[0].partition(":")
            connection, address = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM), (host, int(port or 80))
        connection.settimeout(self.call_limit)
        connection.connect(address)
        return connection

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._open.send(view) :]

    def _more(self) -> None:
        data = self._open.recv(65536)
        if not data:
            raise Dropped("the connection was closed")
        self.buffer += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            self._more()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def _answer(self) -> tuple[int, dict[str, str], bytes]:
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            data = b""
            while size := int(self._until(b"\r\n").split(b";")[0], 16):
                data += self._exactly(size)
                self._exactly(2)
            self._until(b"\r\n")
        else:
            data = self._exactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self._open.close()
            self.connection = None
        return int(lines[0].split()[1]), headers, data


def run(command: str, limit_s: float) -> tuple[str, int | None]:
    """(what a shell command printed, its exit code); after `limit_s` it and what it started is killed, code None."""
    reading, writing = os.pipe()
    quiet = os.open("/dev/null", os.O_RDONLY)
    actions = [(os.POSIX_SPAWN_DUP2, quiet, 0), (os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, writing, 2)]
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], ENVIRON, file_actions=actions, setpgroup=0)
    os.close(writing)
    os.close(quiet)
    data, whole = _read(reading, time.monotonic() + limit_s)
    os.close(reading)
    if not whole:
        _kill(pid)
    status = os.waitpid(pid, 0)[1]
    _kill(pid)
    return data.decode(errors="replace"), os.waitstatus_to_exitcode(status) if whole else None


def _read(fd: int, deadline: float) -> tuple[bytes, bool]:
    poll, data = select.poll(), b""
    poll.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            chunk = os.read(fd, 65536)
            if not chunk:
                return data, True
            data = (data + chunk)[: 1 << 22]
    return data, False


def _kill(group: int) -> None:
    try:
        os.killpg(group, 9)
    except ProcessLookupError:
        return


def cut(text: str, size: int) -> str:
    """`text` in at most about `size` characters, its middle left out."""
    if len(text) <= size:
        return text
    half = max(size // 2 - 10, 1)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def write_tool(config: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, bool]:
    path, content = arguments.get("path"), arguments.get("content")
    if not isinstance(path, str) or not isinstance(content, str) or not path:
        return "error: write needs a path and a content", True
    here = os.path.realpath(".")
    target = "" if "\0" in path else os.path.realpath(path)
    if not target.startswith(here.rstrip("/") + "/"):
        return f"error: {cut(path, 80)} is outside of the workspace", True
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            file.write(content)
    except (OSError, ValueError) as error:
        return f"error: {error}"[:200], True
    if not config["check"]:
        return "ok", False
    text, code = run(config["check"], config["check_limit_s"])
    if code is None:
        return f"error: the check took over {config['check_limit_s']:g} s", True
    return text.rstrip()[: config["check_chars"]] or "ok", False


def bash_tool(config: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, bool]:
    command = arguments.get("command")
    if not isinstance(command, str) or "\0" in command:
        return "error: bash needs a command", True
    text, code = run(command, config["tool_limit_s"])
    if code is None:
        return cut(text, config["tool_chars"]) + f"\n[stopped after {config['tool_limit_s']:g} s]", True
    return (cut(text, config["tool_chars"]) + (f"\n[exit code {code}]" if code else "")).strip() or "ok", code != 0


HANDLERS = {"write": write_tool, "bash": bash_tool}


def call_tool(config: dict[str, Any], function: dict[str, Any]) -> tuple[str, bool]:
    """(content of the tool message, whether it failed). What the policy gets wrong is told to it, in few words."""
    name = str(function.get("name"))
    if name not in config["tools"]:
        return f"error: there is no tool {cut(name, 40)}", True
    try:
        arguments = function.get("arguments") or "{}"
        arguments = loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return "error: the arguments are not valid JSON", True
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object", True
    return HANDLERS[name](config, arguments)


def say(record: dict[str, Any]) -> None:
    """One JSON line for the runner."""
    sys.stdout.write(dumps(record) + "\n")
    sys.stdout.flush()


def answer_calls(config: dict[str, Any], messages: list[Any], calls: list[Any]) -> None:
    for call in calls:
        started = time.monotonic_ns()
        content, failed = call_tool(config, call.get("function") or {})
        messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": content})
        took = (time.monotonic_ns() - started) // 1000
        record = {
            "type": "tool",
            "id": call.get("id"),
            "content": content[:16384],
            "nbytes": len(content.encode(errors="replace")),
        }
        say({**record, "failed": failed, "took_us": took})


def objection(config: dict[str, Any], message: dict[str, Any]) -> str:
    """What the check says against an answer, which it finds in `config["answer"]`. Raises End where nothing is said against it."""
    if not config["answer"]:
        raise End(COMPLETED)
    said, _ = write_tool(config, {"path": config["answer"], "content": str(message.get("content") or "")})
    if said == "ok":
        raise End(COMPLETED)
    return said


def work(config: dict[str, Any], state: dict[str, int]) -> NoReturn:
    """Ask, do what is asked for, ask again. Raises End."""
    endpoint = Endpoint(config)
    messages = [{"role": "system", "content": config["system"]}] if config["system"] else []
    messages.append({"role": "user", "content": config["instruction"].strip()})
    tools = [TOOLS[name] for name in config["tools"]]
    while True:
        request = {"model": config["model"], "messages": messages, **({"tools": tools} if tools else {})}
        answer = endpoint.ask(dumps(request).encode())
        state["turns"] += 1
        state["tokens"] += int((answer.get("usage") or {}).get("completion_tokens") or 0)
        message = answer["choices"][0]["message"]
        messages.append(message)
        if message.get("tool_calls"):
            answer_calls(config, messages, message["tool_calls"])
        else:
            messages.append({"role": "user", "content": objection(config, message)})
        if state["turns"] >= config["max_turns"]:
            raise End(TURN_BUDGET)
        if 0 < config["token_budget"] <= state["tokens"]:
            raise End(TOKEN_BUDGET)


def main(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        config = loads(file.read())
    state = {"turns": 0, "tokens": 0}
    try:
        work(config, state)
    except End as end:
        say({"type": "result", "code": end.code, "detail": end.detail, **state})
        return end.code


ENVIRON = {name: value for name, value in os.environ.items() if name != "GYRE_API_KEY"}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
