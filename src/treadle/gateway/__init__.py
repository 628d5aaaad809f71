"""The server: OpenAI- and Anthropic-compatible, in front of any upstream."""
