"""GGUF's Q5_0: blocks of 32, 5-bit codes around 16, with a scale; the fifth bits lie before the nibbles."""

from gamaneh.models.formats.small_blocks import SmallBlocks

Q5_0 = SmallBlocks("Q5_0", bits=5, zero=16, minimum=False)
