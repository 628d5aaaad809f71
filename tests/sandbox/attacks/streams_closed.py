# Closes what it prints to, by Python and by number, and puts something else there.
# Cells go on, and what they print is lost to them alone.
# %% prints
# > fine
print("fine")
# %% raises ValueError
sys.stdout.close()
print("lost")
# %% prints
os.write(1, b"")
# %% new prints
os.close(1)
os.close(2)
one = os.open("/workspace/caught", os.O_WRONLY | os.O_CREAT)
print("caught")
sys.stdout.flush()
# %% prints
assert open("/workspace/caught").read() == "caught\n"
