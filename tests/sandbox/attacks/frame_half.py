# Begins a frame and falls silent: what its own end of the bridge says afterwards is swallowed by it.
# The cell ends at its time limit, and the container with it.
#: limit_s=0.5
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% dies timeout
raw(struct.pack(">I", 1_000_000) + b'{"t":"call"')
print("said")
