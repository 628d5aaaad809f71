# Makes a system call by the gate of 32-bit programs, where the numbers mean something else.
# The process is killed on the spot: by the filter, or by a kernel without that gate.
#: machine=x86_64
# %% prints
# > True
import mmap

page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
entry = ctypes.addressof(ctypes.c_char.from_buffer(page))
page[:8] = b"\xb8\x27\x00\x00\x00\x0f\x05\xc3"  # mov eax, 39; syscall; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(entry)() == os.getpid())
# %% prints
# > True
page[:8] = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
print(child(lambda: ctypes.CFUNCTYPE(ctypes.c_int)(entry)()) in (-signal.SIGSYS, -signal.SIGSEGV))
# %% dies exit: status -
ctypes.CFUNCTYPE(ctypes.c_int)(entry)()
