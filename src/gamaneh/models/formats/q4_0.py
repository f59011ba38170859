"""GGUF's Q4_0: blocks of 32, 4-bit codes around 8, with a scale."""

from gamaneh.models.formats.small_blocks import SmallBlocks

Q4_0 = SmallBlocks("Q4_0", bits=4, zero=8, minimum=False)
