"""`treadle serve`: the gateway, from its first line to its last answer."""

import gc
import json
import shlex
from pathlib import Path

import click

from treadle.errors import TreadleError
from treadle.settings import Settings


def run_server(config: Path | None, host: str, port: int, upstream: str | None, grace: float) -> int:
    """Serve until SIGINT or SIGTERM; the exit code of the process."""
    try:
        from treadle.app import open_gateway
        from treadle.gateway.server import server
    except ImportError as error:
        click.echo(
            f"the server needs an extra: pip install 'treadle[gateway]' ({error.name} is missing)", err=True
        )
        return 2
    try:
        opened = open_gateway(Settings.read(), config, upstream)
    except TreadleError as error:
        click.echo(f"treadle serve: {error}", err=True)
        return 2

    def told(address: str) -> None:
        for place in opened.configuration.ignored:
            click.echo(f"warning: {place} has no effect here", err=True)
        click.echo(f"treadle serve: listening on {address}")
        if opened.new_key is not None:
            click.echo(f"admin key (made now, shown once): {opened.new_key}")
        elif opened.configured_key is None:
            click.echo("admin key: shown at the first start; TREADLE_MASTER_KEY=sk-... sets another")
        key = opened.new_key or ("$TREADLE_MASTER_KEY" if opened.configured_key else "$TREADLE_KEY")
        click.echo(f"try: {_curl(address, key, opened.configuration.deployments.listed[0].name)}")

    # what was imported lives as long as the process: the collector need not look at it again
    gc.freeze()
    running = server(opened.app, host=host, port=port, grace_s=grace, told=told)
    try:
        running.run()
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        return 0
    except SystemExit:
        click.echo(f"treadle serve: {opened.app.failed or f'cannot listen on {host}:{port}'}", err=True)
        return 1
    if opened.app.failed:
        click.echo(f"treadle serve: {opened.app.failed}", err=True)
        return 1
    return 0


def _curl(address: str, key: str, model: str) -> str:
    """A line for a shell: a question to a model, or the list of models where none has a whole name."""
    authorization = f'-H "Authorization: Bearer {key}"'
    if "*" in model:
        return f"curl {address}/v1/models {authorization}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    kind = '-H "Content-Type: application/json"'
    return f"curl {address}/v1/chat/completions {authorization} {kind} -d {shlex.quote(body)}"
