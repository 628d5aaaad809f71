# Lets the first thread of a process end while another one takes memory: /proc then tells of the first one only.
# All of it counts: the container is killed at its limit.
#: memory_mib=192 limit_s=8
# %% prints
# > 50
print(len(bytearray(50 << 20)) >> 20)
# %% dies memory: more than 192 MiB
def work():
    time.sleep(0.5)  # until the first thread has ended
    kept = bytearray(150 << 20)
    time.sleep(10)


number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
for _ in range(2):
    if os.fork() == 0:
        threading.Thread(target=work).start()
        C.syscall(number, 0)
time.sleep(4)
print("held 300 MiB")
