"""The composition root: settings become stores, upstreams and the server."""
