"""The agent of `bench_policies`: as many turns as the table has for its place, then a file with its reward.

`python policies_agent.py TABLE`, started by the harness `command` without a sandbox: the workspace's path names the execution.
"""

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SLOWEST_S = 900.0
ASK_AGAIN_S = 0.5


def main(table: Path) -> None:
    workspace = Path(os.environ["GYRE_WORKSPACE"])
    group, index, _ = next(part for part in workspace.parts if part.startswith("g0")).rsplit(".", 2)
    messages = [{"role": "user", "content": Path(os.environ["GYRE_INSTRUCTION"]).read_text()}]
    for _ in range(json.loads(table.read_text())[int(group[1:])][int(index)]):
        said = ask(messages)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    (workspace / "reward.txt").write_text(str(int(index) % 2))


def ask(messages: list[dict[str, str]]) -> str:
    """What the policy says; asked again while the endpoint is away."""
    url = urlsplit(os.environ["GYRE_BASE_URL"])
    headers = {"Authorization": f"Bearer {os.environ['GYRE_API_KEY']}", "Content-Type": "application/json"}
    body = json.dumps({"model": os.environ["GYRE_MODEL"], "messages": messages})
    while True:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=SLOWEST_S)
        try:
            connection.request("POST", f"{url.path}/chat/completions", body, headers)
            answer = connection.getresponse()
            told: dict[str, Any] = json.loads(answer.read())
            if answer.status == 200:
                return str(told["choices"][0]["message"]["content"])
            print(answer.status, told, file=sys.stderr)
        except OSError as error:
            print(error, file=sys.stderr)
        finally:
            connection.close()
        time.sleep(ASK_AGAIN_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
