# Runs a program that nobody may read, its own owner included: the kernel does not let others look into it.
# The watchdog does not tolerate what it cannot look into.
#: rungs=3 limit_s=8
# %% prints
# > 0
print(subprocess.run(["/usr/bin/true"]).returncode)
# %% dies violation: could not be looked into
program = os.open("/workspace/sleep", os.O_CREAT | os.O_WRONLY, 0o111)
os.write(program, open("/usr/bin/sleep", "rb").read())
os.close(program)
subprocess.Popen(["/workspace/sleep", "60"])
time.sleep(5)
