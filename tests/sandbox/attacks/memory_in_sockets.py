# Fills the buffers of sockets, which are memory of the kernel and no process's.
# All of it counts: the container is killed at its limit.
#: memory_mib=96 limit_s=8
# %% prints
# > b'xxxxx'
one, other = socket.socketpair()
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
one.send(b"x" * 5)
print(other.recv(10))
# %% dies memory: more than 96 MiB
def fill():
    kept = []
    while True:
        try:
            pair = socket.socketpair()
        except OSError:
            time.sleep(20)
        kept.append(pair)
        for each in pair:
            each.setblocking(False)
            while said(lambda: each.send(b"x" * 100_000)) == "DONE":
                pass

for _ in range(40):
    if os.fork() == 0:
        fill()
time.sleep(6)
print("held 200 MiB")
