"""Keys by which groups of other packages choose their update rule: ``use_muon``, ``kind``, ``optim_type`` and the like.

A group says by them which algorithm updates it. They stay in it, since loops read them. See csrc/others/rules.h.
"""

from torchdion import _C

SELECTORS = frozenset(_C.GroupKeys.selectors)

choose_algorithm = _C.GroupKeys.choose_algorithm
