# Computes on while a call is under way: the time in which code waits is not counted.
# It does not wait, so its time is counted, and it is stopped at its limit.
#: limit_s=0.5
# %% prints
# > None
print(await sleep(seconds=0.8))
# %% stopped
import asyncio

began = time.monotonic()
waiting = asyncio.ensure_future(sleep(seconds=2))
await asyncio.sleep(0)
try:
    while True:
        pass
finally:
    assert time.monotonic() - began < 1.5
