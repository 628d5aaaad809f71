# Prints bytes that are no text, and what a terminal obeys.
# They come out as text, each harmless to whoever encodes it again.
# %% prints
# > grün
print("grün")
# %% prints
# > ���
os.write(1, b"\xff\xfe\xfd\n")
# %% prints
# > \ud800
print("\ud800")
