"""`treadle serve`: the gateway, from its first line to its last answer."""

import gc
import json
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.errors import TreadleError
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.app import Opened


def run_server(
    config: Path | None, host: str, port: int, upstream: str | None, grace: float, log_level: str
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code of the process."""
    _log_to_stderr(log_level)
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
        # what is there now lives as long as the process: the collector need not look at it again
        gc.freeze()
        for place in opened.configuration.ignored:
            click.echo(f"warning: {place} has no effect here", err=True)
        click.echo(f"treadle serve: listening on {address}")
        key = _tell_key(opened, config)
        click.echo(f"try: {_curl(address, key, opened.configuration.deployments.listed[0].name)}")

    running = server(opened.app, host=host, port=port, grace_s=grace, told=told)
    try:
        running.run()
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        return 0
    except SystemExit:
        click.echo(f"treadle serve: {opened.app.failed or 'it cannot start'}", err=True)
        return 1
    if opened.app.failed:
        click.echo(f"treadle serve: {opened.app.failed}", err=True)
        return 1
    return 0


def _tell_key(opened: "Opened", config: Path | None) -> str:
    """Say where the admin key is; what stands for it in a line for a shell."""
    place = opened.key_place
    if opened.new_key is not None:
        click.echo(f"admin key (made now, shown once): {opened.new_key}")
        return opened.new_key
    if place is not None and place.startswith("$"):
        return place
    if place is None:
        click.echo("admin key: shown at the first start; TREADLE_MASTER_KEY=sk-... sets another")
    else:
        click.echo(f"admin key: {place} of {config}; put it into TREADLE_KEY for the next line")
    return "$TREADLE_KEY"


def _log_to_stderr(level: str) -> None:
    # other libraries, which may log what they send, only from warnings on
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("treadle").setLevel(level.upper())


def _curl(address: str, key: str, model: str) -> str:
    """A line for a shell: a question to a model, or the list of models where none has a whole name."""
    authorization = f'-H "Authorization: Bearer {key}"'
    if "*" in model:
        return f"curl {address}/v1/models {authorization}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    kind = '-H "Content-Type: application/json"'
    return f"curl {address}/v1/chat/completions {authorization} {kind} -d {shlex.quote(body)}"
