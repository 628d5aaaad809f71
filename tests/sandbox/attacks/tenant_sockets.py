# Connects to what listens in the other container, and on the host.
# Names without a path belong to its own network; a path leads nowhere. There is no network at all.
# %% prints
# 3% raises OSError
# > b'x'
with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
    listening.bind("\0own")
    listening.listen()
    calling.connect("\0own")
    listening.accept()[0].send(b"x")
    print(calling.recv(1))
# %% prints
# 3% raises OSError
# > innocent ECONNREFUSED
# > own ECONNREFUSED
# > host ENOENT
# > docker ENOENT
for name, address in {
    "innocent": "\0innocent",
    "own": "\0own",
    "host": SOCKET,
    "docker": "/var/run/docker.sock",
}.items():
    with socket.socket(socket.AF_UNIX) as calling:
        attempt(name, lambda: calling.connect(address))
# %% prints
# > ['EAFNOSUPPORT']
families = [number for number in range(48) if number != socket.AF_UNIX]
print(sorted({said(lambda: socket.socket(family, kind)) for family in families for kind in (1, 2, 3, 5)}))
# %% prints
# 3% raises PermissionError
# > ['lo']
print(sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]))
