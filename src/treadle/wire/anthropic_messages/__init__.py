"""Anthropic's Messages: `POST /v1/messages`."""
