# Watches folders that others see too, of the host or of other containers, where files come and go.
# It cannot watch anything.
# %% prints
# > DONE
print(said(lambda: os.listdir("/workspace")))
# %% prints
# > ['EPERM']
watch, *begin = {"x86_64": (254, 253, 294), "aarch64": (27, 26)}[os.uname().machine]
results = {said(lambda: syscall(number, 0)) for number in begin}
print(sorted(results | {said(lambda: syscall(watch, 0, ctypes.c_char_p(b"/"), 0xFFF))}))
