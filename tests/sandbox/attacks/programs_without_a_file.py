# Runs a program from memory that has no name.
# Such memory cannot be made; what it writes to its own folder may run, under the same walls.
# %% prints
# 3b% raises PermissionError
# > inside
open("/workspace/program", "w").write("#!/bin/sh\necho inside\n")
os.chmod("/workspace/program", 0o755)
print(subprocess.run(["/workspace/program"], capture_output=True, text=True).stdout, end="")
# %% prints
# > EPERM
print(said(lambda: os.memfd_create("x")))
# %% prints
# > ['EPERM']
code = (
    "import ctypes; C = ctypes.CDLL(None, use_errno=True); print(C.unshare(0x10000000), ctypes.get_errno())"
)
import shutil

shutil.copy(sys.executable, "/workspace/python")
ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
print(["EPERM"] if ran.stdout == "-1 1\n" else ran)
