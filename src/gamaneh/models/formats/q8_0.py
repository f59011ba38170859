"""GGUF's Q8_0: blocks of 32, 8-bit codes, -128 to 127, with a scale."""

from gamaneh.models.formats.small_blocks import SmallBlocks

Q8_0 = SmallBlocks("Q8_0", bits=8, zero=128, minimum=False)
