# Writes without end to both pipes, one byte at a time and in pieces of a MiB, also from children.
# It is all taken, and of it the beginning and the end are kept.
# %% prints
# > fine
print("fine")
# %% truncated
for _ in range(100_000):
    os.write(1, b"a")
    os.write(2, b"b")
# %% truncated
for _ in range(64):
    sys.stdout.write("x" * (1 << 20))
# %% truncated
for _ in range(8):
    if os.fork() == 0:
        for _ in range(16):
            os.write(2, b"y" * (1 << 20))
        os._exit(0)
for _ in range(8):
    os.wait()
# %% prints
# > fine
print("fine")
