# Calls a tool that was not declared, past the guest's own end of the bridge.
# The host answers with an error and runs nothing; the cell goes on.
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% prints
# > NameError there is no tool 'delete_everything'
import treadle.sandbox.guest.bridge as guest

bridge = next(each for each in __import__("gc").get_objects() if isinstance(each, guest.Bridge))
try:
    await bridge.call_async("delete_everything", {"__class__": "x"})
except guest.CallRefused as error:
    print(error.kind, error)
# %% prints
# > sent
forge({"t": "call", "id": 777, "name": "delete_everything", "args": {"__class__": "x"}})
time.sleep(0.1)
print("sent")
# %% prints
# > {'a': 2}
print(await echo(a=2))
