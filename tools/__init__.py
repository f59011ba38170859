"""What developers run: races between peers, the table of methods, the map of the source. Not shipped."""
