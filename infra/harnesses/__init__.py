"""The agent clients that come from npm, pinned with hashes in package-lock.json; `python -m infra.harnesses` puts them here."""
