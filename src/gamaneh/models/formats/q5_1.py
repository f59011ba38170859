"""GGUF's Q5_1: blocks of 32, 5-bit codes with a scale and a minimum; the fifth bits lie before the nibbles."""

from gamaneh.models.formats.small_blocks import SmallBlocks

Q5_1 = SmallBlocks("Q5_1", bits=5, zero=0, minimum=True)
