# Replaces what the runner itself uses.
# At worst its own container ends; the host sees an end like any other.
# %% prints
# > 3
import builtins

builtins.three = 3
print(three)
# %% dies exit
builtins.compile = None
builtins.isinstance = None
isinstance(1, int)
# %% new prints
import asyncio

asyncio.run = None
sys.modules["asyncio"] = None
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% new prints
json.loads = json.dumps = None
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% new prints
sys.modules.clear()
# %% new dies exit
import treadle.sandbox.guest.bridge as guest

guest.Bridge.send = lambda self, frame: None
os._exit(0)
