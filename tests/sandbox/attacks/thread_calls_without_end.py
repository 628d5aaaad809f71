# Threads go on calling a tool while the cell ends and the next begins.
# They are frozen in between; the calls go to whichever cell runs.
# %% prints
# > 100
import concurrent.futures

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(len(list(pool.map(str, range(100)))))
# %% prints
# > started
import asyncio


def late():
    time.sleep(0.1)
    calls.append(asyncio.run(echo(a=1)))


calls = []
threading.Thread(target=late, daemon=True).start()
print("started")
# %% prints
# > [{'a': 1}]
time.sleep(0.5)
print(calls)
