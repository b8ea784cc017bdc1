"""The agent clients that come from npm: package.json and package-lock.json pin versions and hashes, `install` puts them here."""
