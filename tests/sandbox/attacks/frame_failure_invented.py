# Invents how its cell failed, at great length.
# The host takes no more of it than is kept of any failure.
# %% raises ZeroDivisionError
# > fine
print("fine")
1 / 0
# %% new raises kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
forge(
    {
        "t": "done",
        "id": this_cell(),
        "error": {"kind": "k" * 1000, "message": "m" * 10**6, "text": "t" * 10**6},
    }
)
time.sleep(10)
