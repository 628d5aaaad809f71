# Watches folders of the host, where files come and go.
# It cannot watch anything.
#: rungs=3
# %% prints
# > DONE
print(said(lambda: os.listdir("/workspace")))
# %% prints
# > EPERM EPERM
number = {"x86_64": (294, 254), "aarch64": (26, 27)}[os.uname().machine]
print(said(lambda: syscall(number[0], 0)), said(lambda: syscall(number[1], 0, ctypes.c_char_p(b"/"), 0xFFF)))
