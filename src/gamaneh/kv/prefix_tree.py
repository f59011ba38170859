"""Which token prefixes have their keys and values in a block: a tree with one edge per full block.

The tree is compared by content: an edge is looked up by its token ids themselves, below the node of
its parent, so two prefixes that hash alike are never taken for each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence


class PrefixNode:
    """One full block of tokens after one particular prefix.

    `block` holds its keys and values, or is None when they were evicted. A node lives as long as
    it has a block, children, or a cursor that stands on it (`pins`).
    """

    __slots__ = ("block", "children", "edge", "parent", "pins")

    def __init__(self, parent: PrefixNode | None, edge: Hashable) -> None:
        self.parent = parent
        self.edge = edge
        self.children: dict[Hashable, PrefixNode] = {}
        self.block: int | None = None
        self.pins = 0

    @property
    def unused(self) -> bool:
        return self.block is None and not self.children and self.pins == 0


class PrefixTree:
    """All known prefixes. Below the top there is one root for each salt."""

    def __init__(self) -> None:
        self.top = PrefixNode(None, None)

    def find(self, parent: PrefixNode, edge: Hashable) -> PrefixNode | None:
        return parent.children.get(edge)

    def extend(self, parent: PrefixNode, edge: Hashable) -> PrefixNode:
        """The child along `edge`, made if there is none."""
        node = parent.children.get(edge)
        if node is None:
            node = parent.children[edge] = PrefixNode(parent, edge)
        return node

    def prune(self, node: PrefixNode) -> None:
        """Remove `node` and the ancestors that nothing needs any more."""
        while node.parent is not None and node.unused:
            del node.parent.children[node.edge]
            node = node.parent

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node below the top."""
        stack = list(self.top.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


class PrefixCursor:
    """How far the blocks of one sequence are known to the tree.

    Args:
        tree: where prefixes are looked up.
        block_size: tokens in one block.
        prompt_len: prompt tokens of the sequence. The number of prompt rows in a block is part of
            its edge, because prompt rows and generated rows may be computed in different tiles and
            then differ in their bits; 0 for every sequence ignores this.
        salt: sequences with different salts share nothing.
    """

    def __init__(self, tree: PrefixTree, block_size: int, prompt_len: int, salt: str) -> None:
        self.depth = 0
        self.node = tree.extend(tree.top, salt)
        self.node.pins += 1
        self._tree = tree
        self._block_size = block_size
        self._prompt_len = prompt_len

    def peek(self, tokens: Sequence[int]) -> PrefixNode | None:
        """The node of the next block of `tokens`, if it is known."""
        return self._tree.find(self.node, self._edge(tokens))

    def advance(self, tokens: Sequence[int]) -> PrefixNode:
        """Step over the next block of `tokens` and return its node, made if unknown."""
        node = self._tree.extend(self.node, self._edge(tokens))
        self._move(node, self.depth + 1)
        return node

    def rewind(self, depth: int) -> None:
        """Step back to `depth` blocks, if it is further."""
        node = self.node
        for _ in range(self.depth - depth):
            assert node.parent is not None, f"cursor at depth {self.depth} is above its root"
            node = node.parent
        self._move(node, min(depth, self.depth))

    def close(self) -> None:
        """Let go of the tree."""
        self.node.pins -= 1
        self._tree.prune(self.node)

    def _move(self, node: PrefixNode, depth: int) -> None:
        node.pins += 1
        self.close()
        self.node, self.depth = node, depth

    def _edge(self, tokens: Sequence[int]) -> Hashable:
        start = self.depth * self._block_size
        prompt_rows = min(max(self._prompt_len - start, 0), self._block_size)
        return prompt_rows, tuple(tokens[start : start + self._block_size])
