# Replaces the end of the bridge inside, to answer for the host and to hide the end of the cell.
# What the host does not hear ends at the time limit; what it hears is checked.
#: limit_s=0.5
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% dies timeout
import treadle.sandbox.guest.bridge as guest

guest.Bridge.finish = lambda self, frame: None
# %% new dies violation
import treadle.sandbox.guest.bridge as guest

guest.encoded = lambda frame: struct.pack(">I", 2) + b"{}"
# %% new dies exit
socket.socket(fileno=3).close()
