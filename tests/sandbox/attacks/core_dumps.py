# Crashes, so that the kernel writes down its memory, or starts a program of the host that does.
# Nothing is written.
# %% prints
# > -6
print(child(os.abort))
# %% prints
# > ValueError
import resource

print(said(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))))
# %% prints
# > -11 []
print(child(lambda: ctypes.string_at(0)), [each for each in os.listdir(".") if "core" in each])
# %% dies exit: status -11
ctypes.string_at(0)
