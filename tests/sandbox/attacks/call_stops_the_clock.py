# Computes on while a call is under way: the time in which code waits is not counted.
# It does not wait, so its time is counted, and it is stopped at its limit.
#: limit_s=0.5
# %% prints
# > None
print(await sleep(seconds=0.8))
# %% stopped
import asyncio

began = time.process_time()
waiting = asyncio.ensure_future(sleep(seconds=8))
await asyncio.sleep(0)
try:
    while True:
        pass
finally:
    assert time.process_time() - began < 1.0
