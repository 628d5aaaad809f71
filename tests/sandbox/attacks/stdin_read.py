# Waits for what somebody might type.
# There is nobody: it ends at once.
# %% prints
# > ''
print(repr(sys.stdin.read()))
# %% raises EOFError
input()
# %% prints
# > b''
print(os.read(0, 10))
