"""Trees to values, checked: what comes from a sandbox with a candidate in it is read through here only."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

from collimate_rl.guest.builder import Builder
from collimate_rl.guest.checker import Checker
from collimate_rl.guest.plain import BadTree, Opaque, Tree


class Decoder:
    """Turns trees into values: exact builtins, `Row`, `Record`, and numpy arrays or `Array`.

    `objects` and `sizes` name containers that a tree may refer to from the start, as an encoder numbered them.
    `opaque(node)` answers nodes tagged "h" and "p"; without it they are bad. `numpy` asks for real arrays where numpy
    can be imported.
    """

    def __init__(
        self,
        opaque: Optional[Opaque] = None,
        numpy: bool = False,
        objects: Iterable[Any] = (),
        sizes: Iterable[int] = (),
    ) -> None:
        self._builder = Builder(opaque, numpy, objects)
        self._checker = Checker(sizes, opaque is not None)

    @property
    def objects(self) -> List[Any]:
        """The containers by their numbers."""
        return self._builder.objects

    @property
    def sizes(self) -> List[int]:
        """Their node counts, references expanded."""
        return self._checker.sizes

    def decode(self, tree: Tree) -> Any:
        """The value of a tree; BadTree when it is none of ours."""
        self._checker.check(tree)
        return self._built(self._builder.build, tree)

    def body(self, tree: Tree) -> Any:
        """The value of a container's node that takes no number of its own (`Encoder.body`)."""
        self._checker.body(tree)
        return self._built(self._builder.body, tree)

    def _built(self, build: Any, tree: Tree) -> Any:
        try:
            return build(tree)
        except Exception as error:
            # What only building can tell: an unhashable key, an element twice, a date out of range.
            raise BadTree("%s: %.200s" % (type(error).__name__, error)) from None
