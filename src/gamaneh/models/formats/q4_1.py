"""GGUF's Q4_1: blocks of 32, 4-bit codes with a scale and a minimum."""

from gamaneh.models.formats.small_blocks import SmallBlocks

Q4_1 = SmallBlocks("Q4_1", bits=4, zero=0, minimum=True)
