# A forked child reads the answer to a call of the runner.
# The runner waits for it until its time is over; the container is as good as before.
#: limit_s=1
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% stopped
import asyncio

answer = asyncio.ensure_future(echo(a=2))
await asyncio.sleep(0)


def steal():
    select.select([3], [], [])
    os.read(3, 1 << 16)


child(steal)
await answer
# %% prints
# > {'a': 3}
print(await echo(a=3))
