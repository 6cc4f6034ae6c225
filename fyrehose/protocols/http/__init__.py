"""The HTTP protocol: publish, read, follow and retire streams with curl or any other HTTP client."""
