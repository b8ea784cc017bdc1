"""The agent clients that come from npm, versions and hashes pinned in package-lock.json; `python -m infra.harnesses` puts them here."""
