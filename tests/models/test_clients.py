"""Sessions: whose connections they are, when they close, what they trust, and which way they take."""

import asyncio
import base64
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest
import trustme
from anyio.abc import ByteStream

from tests.models.servers import GOOD, Answer, Server, after, drop, serving, streamed, tunnel, until, whole
from treadle.conversation.blocks import user
from treadle.conversation.request import ModelRequest
from treadle.errors import InvalidArgument, ModelUnavailable
from treadle.models import clients
from treadle.models.base import Model
from treadle.models.http import Endpoint, call
from treadle.models.routing import Route
from treadle.testing import say, upstream

LIMIT_S = 60

HEAD = """
import asyncio, gc, logging, os, sys, tempfile, threading
import treadle
from treadle import Harness, sandbox
from treadle.conversation.blocks import user
from treadle.conversation.request import ModelRequest
from treadle.models.routing import Route

logging.getLogger("asyncio").setLevel(logging.ERROR)  # -X dev tells of slow callbacks
BASE = sys.argv[1]
FOLDER = sandbox.local(tempfile.gettempdir())
WHERE = dict(sandbox=FOLDER, model="openai/gpt-5", api_base=BASE, api_key="key-of-the-test")

async def ask(on_delta=None):
    model = Route("openai/gpt-5", "key-of-the-test", BASE).connect()
    reply = await model.complete(ModelRequest(model.name, (user("hi"),)), on_delta)
    os.write(1, f"{reply.message.text}\\n".encode())  # one write: two threads must not mix

async def ask_thrice():
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(ask())

def agent(**options):
    return treadle.agent(Harness.TOOL_LOOP, "hi", **WHERE, **options)
"""

CLEAN = {
    "two runs": "asyncio.run(ask()); asyncio.run(ask()); asyncio.run(ask())",
    "two threads at once": """
both = threading.Barrier(2)

async def met():
    await asyncio.to_thread(both.wait)
    await ask()

threads = [threading.Thread(target=lambda: asyncio.run(met())) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
asyncio.run(ask())
""",
    "a cancelled stream": """
async def leave(delta):
    raise asyncio.CancelledError

async def main():
    await ask_thrice()
    try:
        await ask(leave)
    except asyncio.CancelledError:
        pass

asyncio.run(main())
""",
    "an abandoned stream": """
async def main():
    await ask_thrice()
    stream = treadle.aagent(Harness.TOOL_LOOP, "hi", stream=True, **WHERE)
    await anext(stream)

asyncio.run(main())
""",
    "an abandoned stream of synchronous code": """
stream = agent(stream=True)
next(stream)
for _ in range(3): print(agent().text)
""",
    "synchronous and asynchronous calls": """
print(agent().text, flush=True)
asyncio.run(ask())
print(agent().text)
""",
    "a loop closed without its generators": """
loop = asyncio.new_event_loop()
loop.run_until_complete(ask_thrice())
loop.close()
""",
    "a call after a loop was closed without its generators": """
loop = asyncio.new_event_loop()
loop.run_until_complete(ask())
loop.run_until_complete(ask())
loop.close()
asyncio.run(ask())
""",
    "a thread that leaves its loop open": """
def work():
    global loop  # kept, as threads that serve others keep theirs
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask_thrice())

thread = threading.Thread(target=work)
thread.start()
thread.join()
from treadle.models import clients
clients.shut_down()
loop.close()
""",
    "a fork while the loop of synchronous calls is alive": """
print(agent().text, flush=True)
child = os.fork()
gc.collect()
print(agent().text, flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
""",
    "a fork inside of a loop": """
async def main():
    await ask()
    child = os.fork()
    if child == 0:
        gc.collect()
        thread = threading.Thread(target=lambda: asyncio.run(ask()))  # the loop itself is the parent's
        thread.start()
        thread.join()
        os._exit(0)
    assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
    await ask()

asyncio.run(main())
""",
}


def run_script(
    code: str, base_url: str, folder: Path, flags: tuple[str, ...] = ("-X", "dev", "-W", "error")
) -> subprocess.CompletedProcess[str]:
    """Run `code` as a user's script; every warning is an error there."""
    return subprocess.run(
        [sys.executable, *flags, "-c", HEAD + code, base_url],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        check=False,
    )


@pytest.mark.parametrize("name", CLEAN)
def test_a_script_ends_without_a_word(name: str, tmp_path: Path) -> None:
    with upstream.running(lambda request: say("ok")) as fake:
        ran = run_script(CLEAN[name], fake.base_url, tmp_path)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("ok\n" * 3, "", 0)


def test_a_script_that_leaves_its_loop_open_ends_without_a_word(tmp_path: Path) -> None:
    code = "loop = asyncio.new_event_loop(); loop.run_until_complete(ask_thrice())"
    with upstream.running(lambda request: say("ok")) as fake:
        ran = run_script(code, fake.base_url, tmp_path, flags=())

    assert (ran.stdout, ran.stderr, ran.returncode) == ("ok\n" * 3, "", 0)


async def test_a_forked_child_leaves_the_connections_to_its_parent(tmp_path: Path) -> None:
    code = """
agent()
child = os.fork()
if child == 0:
    gc.collect()
    agent()
    sys.exit(0)
os.waitpid(child, 0)
agent()
"""
    reply = {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}
    async with serving(whole(reply)) as server:
        ran = await anyio.to_thread.run_sync(run_script, code, server.url, tmp_path)

        assert (ran.stderr, ran.returncode) == ("", 0)
        assert [seen.connection for seen in server.seen] == [0, 1, 0]


def at(server: Server, path: str = "/v1/chat/completions") -> Endpoint:
    return Endpoint(server.url + path, "acme", {"authorization": "Bearer key-of-the-test"}, retries=0)


async def test_one_connection_serves_call_after_call() -> None:
    async with serving(whole(), whole({}, 429), streamed({"n": 1}, {"n": 2}), whole()) as server:
        endpoint = at(server)
        assert (await call(endpoint, b"{}")).body == GOOD
        with pytest.raises(Exception, match="answered 429"):
            await call(endpoint, b"{}")
        await call(endpoint, b"{}", ignore)
        await call(endpoint, b"{}")

        assert [seen.connection for seen in server.seen] == [0, 0, 0, 0]


async def ignore(event: object) -> None:
    pass


async def test_as_many_calls_run_at_once_as_are_made() -> None:
    everybody = anyio.Event()

    async def wait(server: Server, stream: ByteStream) -> None:
        if len(server.seen) == 150:
            everybody.set()
        await everybody.wait()
        await stream.send(whole())

    async with serving(wait) as server:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for _ in range(150):
                    group.start_soon(call, at(server), b"{}")

        assert {seen.connection for seen in server.seen} == set(range(150))


@pytest.mark.parametrize("close", [after(whole(), drop), whole(GOOD, 200, connection="close")])
async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again(close: Answer) -> None:
    async with serving(close) as server:
        for number in range(3):
            assert (await call(at(server), b"{}")).body == GOOD
            await until(lambda number=number: len(server.seen) == number + 1)
            await anyio.sleep(0.02)  # the client sees the end of the connection

        assert [seen.connection for seen in server.seen] == [0, 1, 2]


async def test_after_a_close_the_next_call_opens_a_new_session() -> None:
    async with serving(whole()) as server:
        first = await clients.session()
        assert await clients.session() is first
        await call(at(server), b"{}")
        await clients.close()
        await clients.close()
        await call(at(server), b"{}")

        assert first.closed
        assert [seen.connection for seen in server.seen] == [0, 1]


def test_each_loop_has_its_own_session() -> None:
    assert asyncio.run(clients.session()) is not asyncio.run(clients.session())


def test_sessions_of_loops_that_ended_are_let_go_of() -> None:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    with upstream.running(lambda request: say("ok")) as fake:
        model = Route("openai/gpt-5", "key", fake.base_url).connect()
        made = [leave(loop, model) for loop in loops]
        loops[0].close()
        clients.shut_down()
        clients.shut_down()

        assert [session.closed for session in made] == [True, True]
        loops[1].close()


def leave(loop: asyncio.AbstractEventLoop, model: Model) -> aiohttp.ClientSession:
    """Run a call in `loop`, in a thread that then ends, and give the session that was used."""

    async def main() -> aiohttp.ClientSession:
        await model.complete(ModelRequest(model.name, (user("hi"),)))
        return await clients.session()

    with ThreadPoolExecutor() as thread:
        return thread.submit(loop.run_until_complete, main()).result()


async def test_a_session_of_a_running_loop_stays_when_others_end() -> None:
    mine = await clients.session()
    await anyio.to_thread.run_sync(clients.shut_down)

    assert await clients.session() is mine
    assert not mine.closed


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def served_by(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(context)  # pyright: ignore[reportUnknownMemberType]
    return context


async def test_an_own_certificate_authority_is_trusted_by_ssl_cert_file(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    async with serving(whole(), tls=served_by(authority, "127.0.0.1")) as server:
        assert (await call(at(server), b"{}")).body == GOOD


@pytest.mark.usefixtures("no_proxies")
def test_certificates_are_read_once_and_only_for_tls(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    own = clients.way_to("https://provider.test/v1").tls

    assert isinstance(own, ssl.SSLContext)
    assert clients.way_to("https://provider.test/v2").tls is own
    assert clients.way_to("http://provider.test/v1").tls is True
    monkeypatch.setenv("HTTP_PROXY", "https://proxy.test")
    assert clients.way_to("http://provider.test/v1").tls is own
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert clients.way_to("https://provider.test/v1").tls is True


async def test_an_unknown_certificate_is_refused_at_once_and_named(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with serving(whole(), tls=served_by(authority, "127.0.0.1")) as server:
        waits: list[float] = []

        async def wait(seconds: float) -> None:
            waits.append(seconds)

        with pytest.raises(ModelUnavailable, match=r"certificate verify failed.*SSL_CERT_FILE"):
            await call(Endpoint(f"{server.url}/v1", "acme", sleep=wait), b"{}")

        assert waits == []
        assert server.seen == []


async def test_a_certificate_of_another_host_is_refused(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    async with serving(whole(), tls=served_by(authority, "example.org")) as server:
        with pytest.raises(ModelUnavailable, match="certificate"):
            await call(at(server), b"{}")

        assert server.seen == []


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


URL = "http://provider.test/v1/chat/completions"


def provider() -> Endpoint:
    """A new one: it looks for proxies when its first request leaves."""
    return Endpoint(URL, "acme", {"authorization": "Bearer key"}, retries=0)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
async def test_a_plain_request_goes_through_http_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(whole()) as proxy:
        for value in (proxy.url, proxy.url.removeprefix("http://"), proxy.url.replace("//", "//me:secret@")):
            monkeypatch.setenv(name, value)
            assert (await call(provider(), b"{}")).body == GOOD

        assert {seen.line for seen in proxy.seen} == {
            "POST http://provider.test/v1/chat/completions HTTP/1.1"
        }
        assert {seen.headers["authorization"] for seen in proxy.seen} == {"Bearer key"}
        proven = [seen.headers.get("proxy-authorization") for seen in proxy.seen]
        assert proven == [None, None, "Basic " + base64.b64encode(b"me:secret").decode()]


@pytest.mark.usefixtures("no_proxies")
async def test_a_secure_request_goes_through_a_tunnel_of_https_proxy(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    secure = Endpoint("https://provider.test/v1", "acme", {"authorization": "Bearer key"}, retries=0)
    async with serving(whole(), tls=served_by(authority, "provider.test")) as server:
        async with serving(tunnel(server.port)) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:secret@"))
            assert (await call(secure, b"{}")).body == GOOD
            await clients.close()

        (connect,) = proxy.seen
        assert connect.line == "CONNECT provider.test:443 HTTP/1.1"
        assert connect.headers["proxy-authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()
        assert "authorization" not in connect.headers
        assert [seen.line for seen in server.seen] == ["POST /v1 HTTP/1.1"]


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_that_refuses_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(whole({}, 407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:secret-of-the-proxy@"))
        with pytest.raises(ModelUnavailable, match="407") as caught:
            await call(Endpoint("https://provider.test/v1", "acme", retries=0), b"{}")

        assert "secret-of" not in str(caught.value)
        assert "secret-of" not in repr(caught.value.__cause__)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("names", ["127.0.0.1", "example.org, 127.0.0.1", "127.0.0.1:{port}", "*"])
async def test_no_proxy_names_hosts_that_are_reached_directly(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(whole()) as proxy, serving(whole()) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", names.format(port=server.port))
        await call(at(server), b"{}")

        assert (len(proxy.seen), len(server.seen)) == (0, 1)


@pytest.mark.usefixtures("no_proxies")
async def test_proxies_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(whole()) as proxy, serving(whole()) as server:
        await call(at(server), b"{}")
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        await call(at(server), b"{}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        await call(at(server), b"{}")

        assert (len(proxy.seen), len(server.seen)) == (1, 2)


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, kind in (("socks5://me:secret@127.0.0.1:9", "socks5"), ("http://me:secret@[::1", "")):
        monkeypatch.setenv("HTTP_PROXY", address)
        with pytest.raises(InvalidArgument, match=f"a proxy of kind '{kind}' is not supported") as caught:
            await call(provider(), b"{}")

        assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("no_proxies")
async def test_passwords_in_netrc_are_not_sent_to_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password secret\n", "utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving(whole()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        await call(provider(), b"{}")
        await call(Endpoint(URL, "acme", {"x-api-key": "key"}), b"{}")

        assert [seen.headers.get("authorization") for seen in proxy.seen] == ["Bearer key", None]
        assert {seen.headers.get("proxy-authorization") for seen in proxy.seen} == {None}
