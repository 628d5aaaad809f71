# Claims a frame longer than any may be.
# The container is killed before a byte of the body is kept.
# %% prints
# > ok
print((await echo(a="a" * 1_000_000))["a"] == "a" * 1_000_000 and "ok")
# %% dies violation: a frame of 4294967295 bytes
raw(b"\xff\xff\xff\xff" + b"x" * 64)
time.sleep(10)
# %% new dies violation: a frame of 4194305 bytes
raw(struct.pack(">I", (4 << 20) + 1))
time.sleep(10)
