"""The public entry points: one prompt, or a session of prompts; sync or async."""
