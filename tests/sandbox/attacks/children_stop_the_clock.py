# Lets processes compute while a call is under way, and sees to it that nobody waits for them when they end.
# All of their time counts, that of those that are gone too, and the execution is stopped at its limit.
#: limit_s=0.5
# %% prints
# > None
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    os._exit(0)
print(await sleep(seconds=0.8))
# %% stopped
import asyncio

def compute():
    if os.fork() == 0:
        end = time.process_time() + 0.25
        while time.process_time() < end:
            pass
        os._exit(0)

waiting = asyncio.ensure_future(sleep(seconds=8))
while True:
    compute()
    await asyncio.sleep(0.3)
# %% prints
# > calm
print("calm")
