# Sends to sockets of the host by their paths, from sockets that come in pairs.
# There are pairs of streams, and they lead nowhere else.
#: rungs=3
# %% prints
# > DONE DONE
print(said(lambda: socket.socketpair()), said(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
# %% prints
# > EPERM EPERM
# > EPERM EPERM EPERM EPERM
print(*(said(lambda: socket.socketpair(socket.AF_UNIX, kind)) for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW)))
one, other = socket.socketpair()
print(said(lambda: one.connect(SOCKET)), said(lambda: one.bind("/workspace/x")), said(one.listen), said(one.accept))
# %% prints
# > EPERM False
print(said(lambda: socket.socket(fileno=os.dup(3)).connect(SOCKET)), said(lambda: one.sendto(b"x", SOCKET)) == "DONE")
