"""Any model as one whose provider runs code and has skills: here they run, and it answers as a provider."""
