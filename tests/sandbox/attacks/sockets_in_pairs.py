# Makes pairs of sockets of every family: the kernel would load modules for them.
# None but those of AF_UNIX can be made; the others do not even reach their family.
# %% prints
# > b'x'
one, other = socket.socketpair()
one.send(b"x")
print(other.recv(1))
# %% prints
# > ['EAFNOSUPPORT']
families = [number for number in range(48) if number != socket.AF_UNIX]
print(sorted({said(lambda: socket.socketpair(family, kind)) for family in families for kind in (1, 2, 3, 5)}))
