"""Agent Skills: folders of instructions and files, read, checked and told to a model."""
