# Sends 4 MiB of nulls.
# The first four are a frame of no bytes, which is no JSON: the container is killed.
# %% prints
# > True
print((await echo(a="\0" * 1000))["a"] == "\0" * 1000)
# %% dies violation: no JSON
raw(bytes(4 << 20))
time.sleep(10)
