"""Every drafting method against plain decoding, category by category: the table of docs/methods.md."""
