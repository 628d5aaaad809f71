# Signals PID 1 in every way there is, with every signal.
# Each is refused: it is outside of what the code may signal.
#: landlock=6
# %% prints
# > own child -9
pid = os.fork()
if pid == 0:
    signal.pause()
os.kill(pid, signal.SIGKILL)
print("own child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% prints
# > kill ['EPERM']
# > pidfd ['EPERM']
# > tkill ['EPERM']
# > queue ['EPERM']
numbers = range(1, 65)
print("kill", sorted({said(lambda: os.kill(1, number)) for number in numbers if number not in (32, 33)}))
handle = os.pidfd_open(1)
print(
    "pidfd",
    sorted(
        {
            said(lambda: signal.pidfd_send_signal(handle, number))
            for number in numbers
            if number not in (32, 33)
        }
    ),
)
tkill, queue = {"x86_64": (200, 129), "aarch64": (130, 138)}[os.uname().machine]
print("tkill", sorted({said(lambda: syscall(tkill, 1, number)) for number in numbers}))
information = ctypes.create_string_buffer(struct.pack("iii", 9, 0, -1).ljust(128, b"\0"))
print("queue", sorted({said(lambda: syscall(queue, 1, number, information)) for number in numbers}))
# %% prints
# > alive
print("alive")
