"""The agent clients that come from npm: package.json and package-lock.json pin versions and hashes, `python -m infra.harnesses` puts them here."""
